"""The typed failures that a stage returns in a row's place, or raises."""

from __future__ import annotations

from typing import Any

from rayorch_prefect.model.outcomes import Kind


class TypedFailure(Exception):
    """Base of the two typed failures; never used itself.

    `RecordFailure("Encrypted", "needs a password")` names the type, then the message.
    A subclass is its own type: `class Encrypted(RecordFailure)`, `Encrypted("needs a password")`.
    """

    kind: Kind
    type: str
    message: str

    def __init__(self, *words: object, type: str | None = None, message: str | None = None) -> None:
        texts = [str(word) for word in words]
        own_class = self.__class__
        if type is None:
            named = own_class.__module__.startswith("rayorch_prefect.model.")
            type = (texts.pop(0) if texts else own_class.__name__) if named else own_class.__name__
        self.type = type
        self.message = " ".join(texts) if message is None else message
        super().__init__(f"{self.type}: {self.message}" if self.message else self.type)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.__class__, self.type, self.message)


def _rebuild(cls: type[TypedFailure], type: str, message: str) -> TypedFailure:
    return cls(type=type, message=message)


class BackendFailure(Exception):
    """Raised by a stage: a service behind it is down, and no other row would fare better.

    An attempt that failed; several in a row pause the stage (see its `backend_patience_s`).
    """


class RecordFailure(TypedFailure):
    """This row alone failed for a reason of its own; it is never retried."""

    kind = Kind.RECORD_FAILURE


class GroupFailure(TypedFailure):
    """This row's failure spoils its siblings: the Call is barred under their direct parent."""

    kind = Kind.GROUP_FAILURE
