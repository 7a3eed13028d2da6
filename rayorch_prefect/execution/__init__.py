"""Ray actor pools, blocks and the driver loop: the only importer of ray."""
