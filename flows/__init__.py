"""Prefect flows: compositions of tasks, thin, without classes."""
