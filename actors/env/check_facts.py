"""What `truestep check` finds out about an environment, as records; `deploy.check` judges them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from actors.env.lanes import Verdict
from common.errors import TruestepError
from common.specs import ArraySpec, SpaceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstructFacts:
    """One environment made and closed.

    Attributes:
        observation, action: what it declares.
        plain, own: whether the id can make single environments, and whether it vectorises itself.
        construct_s: how long it took.
        children_left: processes that it had started and left running after `close`.
    """

    observation: SpaceSpec
    action: ArraySpec
    plain: bool
    own: bool
    construct_s: float
    children_left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainFacts:
    """A single environment, asked directly. Process-wide generators and those of its spaces stood alike each time.

    Attributes:
        fresh_alike: two fresh environments reset with one seed began alike.
        again_alike: so did the second reset of one environment with that seed.
        seeds_matter: some of a few seeds began otherwise.
        unseeded_follows: a reset without a seed, after one with a seed, was the same in both environments.
        action_samples_repeat: its action space, seeded alike twice, gave the same samples.
        outside_space: the first observation that its own space does not contain, in words; empty if none.
        reuses_buffers: an observation that it had returned changed with the next step.
    """

    fresh_alike: bool
    again_alike: bool
    seeds_matter: bool
    unseeded_follows: bool
    action_samples_repeat: bool
    outside_space: str
    reuses_buffers: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayFacts:
    """Random play through the lanes of training, under their contract and a false wall clock, twice alike.

    Attributes:
        ticks, lanes, episodes: how much.
        broken, first_broken: episodes with a value that is not finite, and the first of them in words.
        difference: first tick and field in which the second play differed from the first; empty if none.
        clock_reads: how often the wall clock was read.
        drawn: process-wide generators drawn from: `python`, `numpy`, `torch`.
        depends_on_drawn: a third play, with other states of these, was another.
        digests: of each field of each tick of the first play.
    """

    ticks: int
    lanes: int
    episodes: int
    broken: int
    first_broken: str
    difference: str
    clock_reads: int
    drawn: tuple[str, ...]
    depends_on_drawn: bool
    digests: tuple[dict[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFacts:
    """Environment steps per second in one process (`async`: and its children), environment alone, actions random."""

    vectorised: Literal["own", "sync", "async"]
    lanes: int
    steps_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeedFailure:
    """Why one way of holding lanes could not be timed."""

    vectorised: Literal["own", "sync", "async"]
    lanes: int
    error: TruestepError


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckReport:
    """Everything that was found; each part is its facts, or what went wrong instead, or None where it was not tried.

    Attributes:
        environment: the id.
        construct: the environment made and closed. If it cannot be, nothing else is tried.
        plain: None also where the id makes no single environments.
        play: under the contract.
        shifted: the same play in another process, at another time of day.
        restores: the twin proof.
        speeds: the fastest is not always the widest.
    """

    environment: str
    construct: ConstructFacts | TruestepError
    plain: PlainFacts | TruestepError | None = None
    play: PlayFacts | TruestepError | None = None
    shifted: PlayFacts | TruestepError | None = None
    restores: Verdict | TruestepError | None = None
    speeds: tuple[SpeedFacts | SpeedFailure, ...] = ()
