"""Prefect tasks: thin, without logic of their own."""
