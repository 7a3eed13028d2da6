"""Processes killed in mid-batch, on the whole stack."""
