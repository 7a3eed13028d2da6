"""Tests of the Prefect binding, the flows and the tasks."""
