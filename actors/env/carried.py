"""How a lane's parts cross Gymnasium's vector environments: stored form, unbounded boxes, flat.

The vector environment batches what it is shown; shown unbounded boxes of the stored dtypes it can only copy.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from actors.env.spaces import Parts
from common.specs import SpaceSpec


def carried_space(spec: SpaceSpec) -> gymnasium.Space[Any]:
    """The space that a lane shows the vector environment: stored form, unbounded, flat."""
    boxes: dict[str, gymnasium.Space[Any]] = {name: _box(part.shape, carried_dtype(part.dtype)) for name, part in spec}
    return boxes["obs"] if set(boxes) == {"obs"} else gymnasium.spaces.Dict(boxes)


def carry(parts: Parts) -> Any:
    """Parts in the form of `carried_space`."""
    carried = {name: array.view(np.uint16) if array.dtype.char == "e" else array for name, array in parts.items()}
    return carried["obs"] if len(carried) == 1 and "obs" in carried else carried


def uncarry(carried: Any, spec: SpaceSpec) -> Parts:
    """The inverse of `carry`, batched: views, nothing is copied."""
    parts = carried if isinstance(carried, dict) else {"obs": carried}
    return {name: parts[name].view(part.dtype) for name, part in spec}


def carried_dtype(dtype: str) -> str:
    """Shared memory has no float16 in older Gymnasium: its bits travel as uint16."""
    return "uint16" if dtype == "float16" else dtype


def _box(shape: tuple[int, ...], dtype: str) -> gymnasium.spaces.Box:
    kind = np.dtype(dtype).kind
    low, high = (-np.inf, np.inf) if kind == "f" else (0, 1) if kind == "b" else _integer_limits(dtype)
    return gymnasium.spaces.Box(low=low, high=high, shape=shape, dtype=np.dtype(dtype))


def _integer_limits(dtype: str) -> tuple[int, int]:
    limits: Any = np.iinfo(dtype)
    return int(limits.min), int(limits.max)
