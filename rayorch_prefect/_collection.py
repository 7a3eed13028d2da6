"""The module that the `prefect.collections` entry point names.

Every Prefect server and client start loads it, so it must stay light: it imports nothing, and
neither may `rayorch_prefect/__init__.py` import ray, boto3, pyarrow or prefect when it is loaded.
"""
