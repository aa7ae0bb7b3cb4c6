"""The seam: whoever wants the numbers of a run implements this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

NOTHING_STANDS = -1  # of `undo_after`: every row is undone, those at step 0 too


class Writer(Protocol):
    """Takes the numbers of one run.

    A run calls its writer from one thread, which is not its own: a call may take its time, and what it raises costs
    that row and a warning, never the run. Rows come in the order in which updates were committed; an evaluation's may
    come behind rows of later steps.
    """

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Take a row.

        Args:
            step: environment steps that the run had made.
            values: by grouped name, as in `return/mean`; may hold NaN and infinities.
        """
        ...

    def undo_after(self, step: int) -> None:
        """Rows of later steps are no longer part of the run: it was rolled back, or resumed from before them."""
        ...

    def close(self) -> None:
        """No more rows will come; finish what is being written."""
        ...
