"""What actors brought between two updates, as statistics of the later one: returns with their spread, and seconds."""

from __future__ import annotations

import math

import numpy as np

from common.clock import NS_PER_S
from common.fragment import FragmentSummary

DIGITS = 6  # of a figure that is kept: half the bytes of all of them


class Harvest:
    """Gathers the summaries of fragments until somebody asks what they came to."""

    def __init__(self) -> None:
        self._returns: list[float] = []
        self._collect_ns = 0
        self._env_ns = 0
        self._policy_ns = 0

    def add(self, summary: FragmentSummary) -> None:
        """Another fragment."""
        self._returns.extend(summary.episode_returns)
        self._collect_ns += summary.end_ns - summary.start_ns
        self._env_ns += summary.env_ns
        self._policy_ns += summary.policy_ns

    def clear(self) -> None:
        """Begin anew."""
        self._returns.clear()
        self._collect_ns = self._env_ns = self._policy_ns = 0

    def statistics(self) -> dict[str, float]:
        """Of what was gathered: `episodes` that ended, their mean return (`episode_return`, NaN without one), its
        standard deviation and bounds, and the seconds that actors spent, added up over actors: `seconds_collect` on
        fragments, of which `seconds_env` in environments and `seconds_policy` in the policy's network."""
        seconds = {"collect": self._collect_ns, "env": self._env_ns, "policy": self._policy_ns}
        return {"episodes": len(self._returns), **self._spread()} | {
            f"seconds_{name}": _short(ns / NS_PER_S) for name, ns in seconds.items()
        }

    def _spread(self) -> dict[str, float]:
        if not self._returns:
            return {"episode_return": math.nan}
        returns = np.asarray(self._returns, np.float64)
        return {
            "episode_return": float(returns.mean()),
            "episode_return_std": _short(float(returns.std())),
            "episode_return_min": _short(float(returns.min())),
            "episode_return_max": _short(float(returns.max())),
        }


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
