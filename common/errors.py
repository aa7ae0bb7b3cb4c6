"""Every error that truestep raises on purpose.

    TruestepError
    ├── UserError                 the caller can mend it; the command exits with 2
    │   ├── ConfigError           a key, type, size or combination that is not allowed
    │   ├── ContractError         an environment or network that breaks its own declaration
    │   │   └── NonFiniteError    a NaN or an infinity where the run is told to stop at one
    │   ├── RunNotFoundError      no such run under this output directory
    │   └── OutputError           a directory or port that cannot be used
    ├── WireError                 a frame that is not ours, damaged or hostile
    ├── CheckpointError           a checkpoint that is damaged, incomplete or does not fit
    ├── RegistryError             the run registry cannot be read or written
    ├── EnvironmentFault          an environment raised, returned nonsense or hung
    ├── DeadlineError             a wait ran past its deadline
    ├── SyncError                 a collective of the learner ranks failed or ran past its deadline
    ├── UnreachableError          a live process did not answer, or went away while it was looked at
    └── RunFailedError            the run cannot go on; the message is the verdict

Each says who, what was got, what was allowed and what to do. Errors cross process borders, so they pickle
by their fields and never hold live objects.
"""

from __future__ import annotations

from typing import Any

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_RESUMABLE = 75


class TruestepError(Exception):
    """Base of the tree.

    Args:
        what: one sentence: what is wrong, and where (run, actor, environment, lane, tick, key ...).
        got: the offending value, as text.
        allowed: what would have been right.
        fix: what the reader can do about it.
        detail: long material (an original traceback); printed after the message, never inside it.
    """

    exit_code = EXIT_FAILED

    def __init__(
        self, what: str, *, got: object = None, allowed: object = None, fix: str = "", detail: str = ""
    ) -> None:
        self.what = what
        self.got = None if got is None else str(got)
        self.allowed = None if allowed is None else str(allowed)
        self.fix = fix
        self.detail = detail
        super().__init__(self._message())

    def _message(self) -> str:
        parts = [self.what]
        if self.got is not None:
            parts.append(f"got {self.got}")
        if self.allowed is not None:
            parts.append(f"allowed: {self.allowed}")
        if self.fix:
            parts.append(self.fix)
        return "; ".join(parts)

    def __reduce__(self) -> tuple[Any, ...]:
        fields = {"got": self.got, "allowed": self.allowed, "fix": self.fix, "detail": self.detail}
        return _rebuild, (type(self), self.what, fields)


def _rebuild(kind: type[TruestepError], what: str, fields: dict[str, Any]) -> TruestepError:
    return kind(what, **fields)


class UserError(TruestepError):
    """The caller can mend it: bad configuration, bad environment, bad path. Exit code 2, no traceback."""

    exit_code = EXIT_BAD_INPUT


class ConfigError(UserError):
    """A configuration key, type, size or combination that is not allowed."""


class ContractError(UserError):
    """An environment (or custom network) broke what it declares: space, dtype, shape, finiteness, flags."""


class NonFiniteError(ContractError):
    """A NaN, an infinity, or a reward beyond float32, where the run is told to stop at one."""


class RunNotFoundError(UserError):
    """No such run in the registry of this output directory."""


class OutputError(UserError):
    """An output directory or a port that cannot be used."""


class WireError(TruestepError):
    """A frame that is not ours, damaged, hostile, or not representable on the wire."""


class CheckpointError(TruestepError):
    """A checkpoint that is damaged, incomplete, or does not fit the run that asks for it."""


class RegistryError(TruestepError):
    """The run registry cannot be read or written."""


class EnvironmentFault(TruestepError):
    """An environment raised, exited, hung or returned nonsense; names actor, environment, lane and tick."""


class DeadlineError(TruestepError):
    """A wait ran past its deadline; names who waited for whom and how long."""


class SyncError(TruestepError):
    """A collective of the learner ranks failed or ran past its deadline; says which rank noticed, where and how."""


class UnreachableError(TruestepError):
    """A process of a live run did not answer, or went away while it was looked at. The run itself may be well."""


class RunFailedError(TruestepError):
    """The run cannot go on; the message is the verdict."""
