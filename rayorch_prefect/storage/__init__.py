"""S3: listing, key layout, publishing, ledger and manifest."""
