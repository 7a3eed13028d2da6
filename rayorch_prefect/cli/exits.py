"""The exit statuses, and which of them an error has."""

from __future__ import annotations

from rayorch_prefect.errors import ProgramError, RayorchError, UsageError

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def status_of_error(error: RayorchError) -> int:
    """2 for what was asked wrongly, 1 for all else."""
    return EXIT_USAGE if isinstance(error, (UsageError, ProgramError)) else EXIT_FAILED
