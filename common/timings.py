"""How long the ticks and the episodes of a fragment took: facts for the metrics of the process that made it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FragmentTimings:
    """Of one fragment.

    Attributes:
        step_ns: [ticks] int64, each step of all lanes. A view: the next fragment overwrites it.
        episode_ns: [episodes] int64, each training episode that ended and had begun in this process.
    """

    step_ns: NDArray[np.int64]
    episode_ns: NDArray[np.int64]
