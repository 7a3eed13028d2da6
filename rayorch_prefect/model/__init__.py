"""Frozen values that every layer shares: outcomes, failures, values' addresses, messages."""
