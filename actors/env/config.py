"""What a user says about the environment."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from common.errors import ConfigError

VECTORISE = ("auto", "own", "sync", "async")
ON_NONFINITE = ("stop_run", "drop_episode", "end_episode")


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvConfig:
    """Which Gymnasium environment, how it is vectorised, and how long it may take.

    Attributes:
        id: any registered id, or `"module:Id"` to import the module that registers it first. The version is part
            of the id: an id without one would name another environment after an upgrade.
        vectorise: `own` is the id's vector entry point, `sync` and `async` are Gymnasium's vector environments over
            single ones; `auto` takes `own` where the id has an entry point, else `sync`.
        kwargs: given to the environment's constructor as they are.
        on_nonfinite: what a NaN, an infinity or a reward beyond float32 does: `stop_run` raises; the other two break
            the episode at that tick (end BROKEN) and differ only in what the rollout keeps: `drop_episode` voids the
            whole episode, `end_episode` keeps the transitions before it.
        construct_deadline_s: longest construction of all lanes (asynchronous lanes only: nothing can interrupt user
            code in our own process; there the worker's watchdog ends the process).
        step_deadline_s: the same for one tick, one reset and for closing.
    """

    id: str = ""
    vectorise: Literal["auto", "own", "sync", "async"] = "auto"
    kwargs: dict[str, Any] = field(default_factory=dict)
    on_nonfinite: Literal["stop_run", "drop_episode", "end_episode"] = "stop_run"
    construct_deadline_s: float = 60.0
    step_deadline_s: float = 30.0

    def validate(self) -> None:
        """Raise `ConfigError` for what can be seen without constructing the environment."""
        if not self.id:
            raise ConfigError("env.id: no environment", got="''", allowed="a Gymnasium id, or 'module:Id'")
        if self.vectorise not in VECTORISE:
            raise ConfigError("env.vectorise: unknown mode", got=repr(self.vectorise), allowed=", ".join(VECTORISE))
        if self.on_nonfinite not in ON_NONFINITE:
            raise ConfigError(
                "env.on_nonfinite: unknown policy", got=repr(self.on_nonfinite), allowed=", ".join(ON_NONFINITE)
            )
        for name in ("construct_deadline_s", "step_deadline_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ConfigError(f"env.{name}: no deadline", got=getattr(self, name), allowed="finite seconds above 0")
