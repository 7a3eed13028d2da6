"""Prefect: building flows and tasks, states, artifacts, settings."""
