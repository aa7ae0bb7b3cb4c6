"""Verdicts that do not flap: one comes into force when it has been found several times in a row."""

from __future__ import annotations

from common.metrics import Stall

FINDS = 3  # judgements in a row, one a second, over windows of ten: the cause has lasted for about four seconds


class Steady:
    """The verdict in force; healthy at first.

    Attributes:
        verdict: in force.
    """

    def __init__(self) -> None:
        self.verdict = Stall.HEALTHY
        self._candidate = Stall.HEALTHY
        self._found = 0

    def take(self, found: Stall) -> bool:
        """Take a judgement in; returns whether it has come into force now."""
        self._found = self._found + 1 if found is self._candidate else 1
        self._candidate = found
        if found is self.verdict or self._found < FINDS:
            return False
        self.verdict = found
        return True
