"""The same scheduler under a virtual clock: what a run would take, before anyone rents a GPU."""
