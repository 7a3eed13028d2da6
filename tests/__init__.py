"""Tests, one folder a part of the package."""
