"""What a supervisor asks of a process over HTTP, and what is answered: three questions with three different answers.

/startupz   has it begun?             until then nothing else is held against it
/livez      does it make progress?    no: end it and start it again
/readyz     is everybody there?       no: wait, there is nothing to mend
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class Probe(StrEnum):
    """A question, by the path that asks it. `HEALTH` is what is asked of processes that only have to answer at all."""

    STARTUP = "/startupz"
    LIVE = "/livez"
    READY = "/readyz"
    HEALTH = "/healthz"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeAnswer:
    """Yes or no, and why.

    Attributes:
        yes: whether it is so.
        why: one line.
    """

    yes: bool
    why: str


class Prober(Protocol):
    """Who knows the answers."""

    def ask(self, probe: Probe) -> ProbeAnswer:
        """The answer now, from any thread, without waiting for anything. `HEALTH` is answered as `LIVE` is."""
        ...


class Answering:
    """A process that lives as long as it answers."""

    def ask(self, probe: Probe) -> ProbeAnswer:
        """Yes."""
        return ProbeAnswer(yes=True, why="ok")
