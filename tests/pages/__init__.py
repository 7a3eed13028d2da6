"""Pages of the Prefect UI, as a browser shows them."""
