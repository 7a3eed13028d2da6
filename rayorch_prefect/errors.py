"""The error tree. The class says whose fault it is.

ProgramError    the program's declaration or a stage's broken contract
StageError      what user code inside a stage did (typed failures are values, not errors)
ClusterError    Ray, its nodes or their resources
BackendDown     a service behind a stage
StoreError      the object store
OwnedElsewhere  nobody's: another run is at work there
LeaseLost       nobody's: this run was taken for dead
UsageError      a wrong argument to this library or its command line
InternalError   ours: please report it
"""

from __future__ import annotations


class RayorchError(Exception):
    """Root of everything this package raises on purpose."""


class UsageError(RayorchError):
    """An argument is wrong; the message says which, and what would be right."""


class ProgramError(RayorchError):
    """The declaration of a Program is refused; the message names file and line."""


class StageError(RayorchError):
    """A stage could not be built or run."""


class StageStartError(StageError):
    """The workers of a stage died before their first batch, several in a row."""


class ClusterError(RayorchError):
    """The cluster cannot do what the Program asks for."""


class DoesNotFit(ClusterError):
    """A stage asks for resources that no node of the cluster has."""


class ObjectStoreFull(ClusterError):
    """Neither Ray's object store nor the disk behind it takes a value."""


class BackendDown(RayorchError):
    """A service behind a stage stays down; the message names the stage and its last failure."""


class StoreError(RayorchError):
    """The object store refused, failed or answered something unexpected."""


class BadBucketName(StoreError, UsageError):
    """The store takes no bucket of this name, whether there is one or not."""


class StoreUnavailable(StoreError):
    """The store, the way to it or the credentials failed for now: it may be tried again."""


class SourceMissing(StoreError):
    """A listed source is no longer there."""


class SourceChanged(StoreError):
    """A listed source has another ETag now than when it was listed."""


class OwnedElsewhere(RayorchError):
    """Another run owns the (destination, program); the message names it."""


class LeaseLost(RayorchError):
    """This run's lease on its (destination, program) has expired or is another run's."""


class ParentNotCompleted(UsageError):
    """A value was asked of a parent that is FAILED or DROPPED."""


class EngineClosed(UsageError):
    """The Engine was used before it was entered or after it was left."""


class InternalError(RayorchError):
    """A defect of this library."""


class IllegalEvent(InternalError):
    """The scheduler was told something impossible; its state is unchanged."""
