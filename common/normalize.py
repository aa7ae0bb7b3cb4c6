"""What becomes of observations and rewards between environment and algorithm: small pure stages, each can be off.

    observation ──► normalise ──► clip ──► network              wherever a network reads: actor, learner, evaluation
    reward ──► scale ──► clip ──► normalise ──► algorithm       in the learner; returns that are reported stay raw

Fragments carry what environments said. Statistics are the learner's: it takes them from the fragments that it trains
on, each once, and they travel with the weights, so a policy is always a function of raw observations alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.errors import ConfigError, WireError
from common.fragment import End
from common.specs import SpaceSpec

OBSERVATION = "observation"  # key of the scale in what travels with weights


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessingConfig:
    """What becomes of observations and rewards before an algorithm sees them.

    Attributes:
        normalise_observations: each element of floating parts less its running mean, by its running deviation. Images,
            integers and choices stay as they are.
        observation_clip: a normalised element lies within ± this; 0 does not clip.
        reward_scale: factor on every reward, before all else.
        reward_clip: a scaled reward lies within ± this; 0 does not clip.
        normalise_rewards: scaled and clipped rewards by the running deviation of their discounted return; the mean is
            not taken off.
        epsilon: added to a variance before its root is taken.
    """

    normalise_observations: bool = False
    observation_clip: float = 10.0
    reward_scale: float = 1.0
    reward_clip: float = 0.0
    normalise_rewards: bool = False
    epsilon: float = 1e-8

    def __post_init__(self) -> None:
        for name in ("observation_clip", "reward_clip"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"processing.{name}", got=getattr(self, name), allowed="0 (off) or more, finite")
        for name in ("reward_scale", "epsilon"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"processing.{name}", got=getattr(self, name), allowed="above 0, finite")

    @property
    def shapes_rewards(self) -> bool:
        """Whether rewards are scaled or clipped."""
        return self.reward_scale != 1.0 or self.reward_clip > 0.0

    def shaped(self, reward: NDArray[np.float32]) -> NDArray[np.float64]:
        """Scaled and clipped."""
        scaled = reward.astype(np.float64) * self.reward_scale
        return np.clip(scaled, -self.reward_clip, self.reward_clip) if self.reward_clip else scaled

    def factor(self, variance: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a number of that variance is multiplied by."""
        return 1.0 / np.sqrt(variance + self.epsilon)

    def check(self, observation: SpaceSpec) -> None:
        """Raise ConfigError where there is nothing in `observation` to normalise."""
        if self.normalise_observations and not normalised_parts(observation):
            raise ConfigError(
                "processing.normalise_observations: nothing to normalise",
                got=", ".join(f"{name} {spec.dtype}{list(spec.shape)}" for name, spec in observation),
                allowed="an observation with a floating part",
                fix="leave it off: images, integers and choices go into the network in a form of their own",
            )


def normalised_parts(observation: SpaceSpec) -> list[tuple[str, tuple[int, ...]]]:
    """Name and shape of the parts that can be normalised, in their order."""
    return [(name, spec.shape) for name, spec in observation if spec.kind == "box" and spec.dtype.startswith("float")]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class InputScale:
    """How a network of some version sees observations: (x - mean) factor, within ± clip.

    Attributes:
        mean: float64 [W], elements of the parts that are normalised, in C order, part by part.
        factor: float64 [W].
        clip: 0 does not clip.
    """

    mean: NDArray[np.float64]
    factor: NDArray[np.float64]
    clip: float

    def to_plain(self) -> dict[str, Any]:
        """What travels with the weights."""
        return {OBSERVATION: {"mean": self.mean, "factor": self.factor, "clip": self.clip}}

    @staticmethod
    def from_plain(plain: dict[str, Any], observation: SpaceSpec) -> InputScale | None:
        """Of what travelled with weights; None where those see observations as they are.

        Raises:
            WireError: damaged, or of other observations.
        """
        if OBSERVATION not in plain:
            return None
        match plain[OBSERVATION]:
            case {"mean": np.ndarray() as mean, "factor": np.ndarray() as factor, "clip": float(clip)}:
                scale = InputScale(mean=mean, factor=factor, clip=clip)
            case other:
                raise WireError("statistics of weights", got=f"{other!r:.200}", allowed="mean, factor and clip")
        expected = [f"float64 ({_width(observation)},)"] * 2
        if (got := [f"{each.dtype} {each.shape}" for each in (mean, factor)]) != expected:
            raise WireError(
                "statistics of weights: mean and factor",
                got=got,
                allowed=expected,
                fix="actor and learner must see the same observations",
            )
        return scale


def _width(observation: SpaceSpec) -> int:
    return sum(math.prod(shape) for _, shape in normalised_parts(observation))


def discounted_returns(
    reward: NDArray[np.float64],
    end: NDArray[np.uint8],
    valid: NDArray[np.uint8],
    before: NDArray[np.float64],
    discount: float,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """G_t = γ G_{t-1} + r_t for every row [T, B], and what row T goes on from [B].

    An episode's first row goes on from 0, row 0 from `before` [B]. Invalid rows take no part: they hold the G before
    them, which is 0 behind an episode's end, and that of the episode under way where a lane had no time for more rows.

    Worked example: γ = 0.5, before 4, rewards 1 and 2 with an end, the invalid row, reward 3: G = 3, 3.5, 0, 3.
    """
    returns = np.empty_like(reward)
    carried = before.astype(np.float64)
    for t in range(len(reward)):
        returns[t] = np.where(valid[t], discount * carried + reward[t], carried)
        carried = np.where(end[t] == End.CONTINUES, returns[t], 0.0)
    return returns, carried


class RunningReturns:
    """An actor's part: what each lane's discounted return stands at between two fragments.

    Attributes:
        before: float64 [B], before row 0 of the next fragment.
    """

    def __init__(self, num_lanes: int, config: ProcessingConfig, discount: float) -> None:
        self.before = np.zeros(num_lanes)
        self._config = config
        self._discount = discount

    def follow(self, reward: NDArray[np.float32], end: NDArray[np.uint8], valid: NDArray[np.uint8]) -> None:
        """A fragment has been filled: [T, B] each."""
        shaped = self._config.shaped(reward)
        self.before = discounted_returns(shaped, end, valid, self.before, self._discount)[1]
