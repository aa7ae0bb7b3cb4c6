"""Seeing an environment: which lane shows itself and how, and what a picture must be.

Only the lane that is to be seen is constructed with `render_mode`, so that one window opens and not B. An environment
that vectorises itself takes the argument as a whole.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from actors.env.config import EnvConfig
from actors.env.construct import construct_one, construct_vector, find_spec, uses_entry_point
from actors.env.seat import Seat
from actors.env.spaces import PartViolation
from common.errors import ConfigError
from common.rng import Role, Streams

RenderMode = Literal["human", "rgb_array"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """What is to be seen.

    Attributes:
        mode: `human`: the environment opens a window of its own and draws in it as it is stepped; `rgb_array`: it is
            asked for pictures.
        lane: of which lane.
    """

    mode: RenderMode
    lane: int

    def config(self, config: EnvConfig) -> EnvConfig:
        """`config` of what is to be seen."""
        return replace(config, kwargs={**config.kwargs, "render_mode": self.mode})


def check_renders(config: EnvConfig, mode: RenderMode) -> None:
    """Construct the environment once, without rendering, to read what it declares, and close it.

    Raises:
        ConfigError: its metadata do not name `mode`.
        UserError, EnvironmentFault: as `make_lanes`.
    """
    spec = find_spec(config)
    own = uses_entry_point(config, spec)
    seat = Seat(
        environment=config.id,
        who="the check of rendering",
        lane=None if own else 0,
        streams=Streams(0),
        role=Role.DRIVER,
        index=0,
        incarnation=0,
    )
    env: Any = construct_vector(config, spec, 1, seat) if own else construct_one(config, spec, seat)
    declared = [str(name) for name in (env.metadata or {}).get("render_modes") or ()]
    seat.run("close", None, env.close)
    if mode in declared:
        return
    which = "the vector form of environment" if own else "environment"
    raise ConfigError(
        f"{which} {config.id!r} cannot render {mode}",
        got=f"metadata['render_modes'] {declared}",
        allowed="--frames DIR: it gives pictures" if "rgb_array" in declared else "replaying without rendering",
    )


def picture(found: Any) -> NDArray[np.uint8]:
    """What `render` returned, as an array of its own: uint8 [height, width, 3]. Raises PartViolation if it is not."""
    if isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3:
        return found.copy()  # many environments draw into the same array every time
    got = f"{found.dtype} {list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
    raise PartViolation("what render returned", got, "uint8 [height, width, 3]")
