"""Ready programs, each behind an extra."""
