"""The package's version, which travels with its code."""

VERSION = "0.1.0"
