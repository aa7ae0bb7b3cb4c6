"""Processes that were told to end, until they are gone."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray

from common.clock import Clock, Deadline, wait_until
from common.process_identity import Liveness, ProcessIdentity

GRACE_S = 2.0  # Ray's own way takes some 10 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class _Ending:
    """A process of this host, and until when it may end by itself."""

    identity: ProcessIdentity
    grace: Deadline


class Endings:
    """Ends processes: Ray asks a process to end itself, which one that was stopped (SIGSTOP) does not; the kernel does
    not ask, but only on this host, and Ray reports its victims as accidents. So Ray's way first, then the kernel's.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._own = ProcessIdentity.current()
        self._endings: list[_Ending] = []

    def end(self, handle: Any, identity: ProcessIdentity | None) -> None:
        """Have the actor behind Ray's `handle` end; `identity` is its process, None if it never said."""
        ray.kill(handle, no_restart=True)
        if identity is not None:
            self._endings.append(_Ending(identity=identity, grace=Deadline(self._clock, GRACE_S)))

    def enforce(self) -> None:
        """Kill what has had its time; a process that has since taken the pid is left alone."""
        self._endings = [ending for ending in self._endings if self._lives(ending)]
        for ending in self._endings:
            if ending.grace.expired():
                with suppress(
                    ProcessLookupError, PermissionError
                ):  # gone since, or of another user: Ray's word must do
                    os.kill(ending.identity.pid, signal.SIGKILL)

    def wait(self, limit_s: float) -> bool:
        """Wait until all of this host are gone; False if some are not within `limit_s`."""

        def gone() -> bool:
            self.enforce()
            return not self._endings

        return wait_until(gone, clock=self._clock, seconds=limit_s)

    def _lives(self, ending: _Ending) -> bool:
        return ending.identity.liveness(self._own) is Liveness.ALIVE
