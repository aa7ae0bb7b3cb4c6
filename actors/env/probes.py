"""The probes of `truestep check`: each runs in its own child and reports one record of `actors.env.check_facts`."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeVar

import gymnasium
import numpy as np

from actors.env.check_facts import ConstructFacts, PlainFacts, PlayFacts, SpeedFacts
from actors.env.child import Report, children_of
from actors.env.config import EnvConfig
from actors.env.construct import construct_one, find_spec, seed_spaces, uses_entry_point
from actors.env.contract import reset_parts, step_parts
from actors.env.lanes import Lanes, Tick
from actors.env.make import make_lanes, prove_restorable, read_recipe, seat_of
from actors.env.proof import PROOF_DEADLINE_S
from actors.env.seat import Seat
from actors.env.spaces import ActionWriter, ObservationReader, Parts, PartViolation, random_action
from actors.env.wall_clock import FalseClock, wall_clock_replaced
from common.clock import Clock, per_second
from common.rng import GlobalGenerators, Purpose, Role, Streams

WHO = "the check"
SEED, OTHER_SEEDS = 1, (2, 3, 4, 5)
PLAIN_TICKS = 64
WARM_TICKS = 4
MANY_ACTIONS = 32  # made before the clock is read, then used in turn

T = TypeVar("T")
Digests = list[dict[str, bytes]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What is asked of every probe.

    Attributes:
        config: the environment.
        seed: of every stream that is drawn.
        lanes, ticks: how much is played.
        clock: of durations.
    """

    config: EnvConfig
    seed: int
    lanes: int
    ticks: int
    clock: Clock

    @property
    def streams(self) -> Streams:
        """Those of the checker."""
        return Streams(self.seed)

    def generators(self, number: int = 0) -> GlobalGenerators:
        """Process-wide generators that begin alike for one number."""
        return GlobalGenerators(self.streams.sequence(Role.CHECKER, 0, purpose=Purpose.GLOBALS, extra=(number,)))

    def draw(self) -> np.random.Generator:
        """What random actions are drawn from; begins alike each time."""
        return self.streams.generator(Role.CHECKER, 0, purpose=Purpose.PROBE)

    def seat(self, *, own: bool = False) -> Seat:
        """The checker's, for environments that no lane holds."""
        return seat_of(self.config, own, streams=self.streams, role=Role.CHECKER, index=0, incarnation=0, who=WHO)

    def make_lanes(self, vectorise: str, lanes: int) -> Lanes:
        """Lanes of the checker."""
        config = replace(self.config, vectorise=vectorise)  # type: ignore[arg-type]
        if config.on_nonfinite == "stop_run":
            config = replace(config, on_nonfinite="end_episode")  # counted, and judged at the end
        return make_lanes(config, lanes, streams=self.streams, role=Role.CHECKER, index=0, incarnation=0, who=WHO)


def probe_construct(check: Check, report: Report) -> None:
    """Make one of what training would make, read its spaces, close it, look for what it left."""
    config = check.config
    report.phase("construct", config.construct_deadline_s)
    spec = find_spec(config)
    own = uses_entry_point(config, spec)
    began_ns = check.clock.now_ns()
    if own:
        lanes = make_lanes(config, 1, streams=check.streams, role=Role.CHECKER, index=0, incarnation=0, who=WHO)
        observation, action, took_ns = lanes.observation, lanes.action, check.clock.now_ns() - began_ns
        report.phase("close", config.step_deadline_s)
        lanes.close()
    else:
        took: list[int] = []

        def before_close() -> None:
            took.append(check.clock.now_ns() - began_ns)
            report.phase("close", config.step_deadline_s)

        recipe = read_recipe(config, spec, check.seat(), before_close)
        observation, action, took_ns = recipe.reader.spec, recipe.writer.spec, took[0]
    report.fact(
        ConstructFacts(
            observation=observation,
            action=action,
            plain=spec.entry_point is not None,
            own=spec.vector_entry_point is not None and not spec.additional_wrappers,
            construct_s=took_ns / 1e9,
            children_left=len(children_of(os.getpid())),
        )
    )


def probe_plain(check: Check, report: Report) -> None:
    """Two single environments, reset in every way and stepped a little."""
    one, other = _open_plain(check, report), _open_plain(check, report)
    first, fresh = one.reset(SEED), other.reset(SEED)
    unseeded = one.reset(None), other.reset(None)
    again = one.reset(SEED)
    seeds_matter = any(one.reset(seed) != first for seed in OTHER_SEEDS)
    one.reset(SEED)
    for action in _actions(check, one.writer, PLAIN_TICKS):
        one.step(action)
    report.fact(
        PlainFacts(
            fresh_alike=first == fresh,
            again_alike=first == again,
            seeds_matter=seeds_matter,
            unseeded_follows=unseeded[0] == unseeded[1],
            action_samples_repeat=_samples_repeat(one.env.action_space),
            outside_space=one.outside,
            reuses_buffers=one.reuses,
        )
    )
    for plain in (one, other):
        plain.close()


def probe_play(check: Check, report: Report, *, shift_s: float) -> None:
    """The same random play twice, and once with other process-wide generators, all under a false wall clock."""
    false = FalseClock(shift_s)
    with wall_clock_replaced(false):
        played = []
        for number in (0, 0, 1):
            false.begin()
            played.append(_play(check, report, check.generators(number)))
    first, second, third = played
    report.fact(
        PlayFacts(
            ticks=check.ticks,
            lanes=check.lanes,
            episodes=first.episodes,
            broken=first.broken,
            first_broken=first.first_broken,
            difference=first_difference(first.digests, second.digests),
            clock_reads=false.reads,
            drawn=first.drawn,
            depends_on_drawn=bool(first.drawn) and first.digests != third.digests,
            digests=tuple(first.digests),
        )
    )


def probe_restores(check: Check, report: Report) -> None:
    """The twin proof of training."""
    report.phase("the proof that its state can be restored", check.config.construct_deadline_s + 2 * PROOF_DEADLINE_S)
    config = check.config
    report.fact(prove_restorable(config, streams=check.streams, who=WHO, clock=check.clock))


def probe_speed(
    check: Check, report: Report, *, vectorised: Literal["own", "sync", "async"], lanes: int, seconds: float
) -> None:
    """Steps per second of lanes held in one way."""
    report.phase(f"construct of {lanes} lanes ({vectorised})", check.config.construct_deadline_s)
    held = check.make_lanes(vectorised, lanes)
    draw = check.draw()
    actions = [random_action(held.action, draw, lanes) for _ in range(MANY_ACTIONS)]
    deadline_s = check.config.step_deadline_s
    report.phase(f"reset of {lanes} lanes ({vectorised})", deadline_s)
    held.start()
    report.phase(f"step of {lanes} lanes ({vectorised})", deadline_s + seconds)
    for action in actions[:WARM_TICKS]:
        held.step(action)
    ticks, began_ns = 0, check.clock.now_ns()
    while (took_ns := check.clock.now_ns() - began_ns) < seconds * 1e9:
        held.step(actions[ticks % MANY_ACTIONS])
        ticks += 1
    report.fact(SpeedFacts(vectorised=vectorised, lanes=lanes, steps_per_s=per_second(ticks * lanes, took_ns) or 0.0))
    report.phase(f"close of {lanes} lanes ({vectorised})", deadline_s)
    held.close()


def first_difference(one: Sequence[dict[str, bytes]], other: Sequence[dict[str, bytes]]) -> str:
    """The first tick and field in which two plays differ; empty if none does. Tick 0 is the reset."""
    for tick, (mine, theirs) in enumerate(zip(one, other, strict=True)):
        for field, digest in mine.items():
            if theirs.get(field) != digest:
                return f"{field} at tick {tick}"
    return ""


class _Plain:
    """One single environment, asked without lanes around it."""

    def __init__(self, check: Check, report: Report, seat: Seat, env: gymnasium.Env[Any, Any]) -> None:
        self.env = env
        self.writer = ActionWriter(env.action_space, check.config.id)
        self.outside = ""
        self.reuses = False
        self._check = check
        self._report = report
        self._seat = seat
        self._reader = ObservationReader(env.observation_space, check.config.id)
        self._last: tuple[Parts, Parts] = ({}, {})

    def reset(self, seed: int | None) -> dict[str, bytes]:
        """Digests of the first observation; spaces and process-wide generators stand alike before each reset."""
        self._report.phase("reset", self._check.config.step_deadline_s)
        seed_spaces(self.env, self._seat)
        with self._check.generators().installed():
            outcome = self._seat.run("reset", None, self.env.reset, seed=seed)
        return self._see(self._split(reset_parts, outcome), "reset")

    def step(self, action: Any) -> None:
        """One action, and a reset if it ends the episode."""
        self._report.phase("step", self._check.config.step_deadline_s)
        outcome = self._seat.run("step", None, self.env.step, action)
        observation, _, terminated, truncated = self._split(step_parts, outcome)
        self._see(observation, "step")
        if terminated or truncated:
            self.reset(None)

    def close(self) -> None:
        """As the environment does it."""
        self._report.phase("close", self._check.config.step_deadline_s)
        self._seat.run("close", None, self.env.close)

    def _see(self, observation: Any, method: str) -> dict[str, bytes]:
        returned, copied = self._last
        self.reuses = self.reuses or any(array.tobytes() != copied[name].tobytes() for name, array in returned.items())
        parts = self._split(self._reader.read, observation)
        if not self.outside and not self.env.observation_space.contains(observation):
            self.outside = f"{method} returned {observation!r:.100}"
        self._last = parts, {name: array.copy() for name, array in parts.items()}
        return digests(parts)

    def _split(self, split: Callable[[Any], T], outcome: Any) -> T:
        try:
            return split(outcome)
        except PartViolation as violation:
            raise self._seat.breach(violation.part, violation.got, violation.expected) from None


def _open_plain(check: Check, report: Report) -> _Plain:
    report.phase("construct", check.config.construct_deadline_s)
    seat = check.seat()
    return _Plain(check, report, seat, construct_one(check.config, find_spec(check.config), seat))


class _Played(NamedTuple):
    """One play of random actions, from construction to close; see `PlayFacts`."""

    digests: Digests
    episodes: int
    broken: int
    first_broken: str
    drawn: tuple[str, ...]


def _play(check: Check, report: Report, generators: GlobalGenerators) -> _Played:
    vectorise = "sync" if check.config.vectorise == "async" else check.config.vectorise
    deadline_s = check.config.step_deadline_s
    with generators.installed():
        report.phase("construct", check.config.construct_deadline_s)
        lanes = check.make_lanes(vectorise, check.lanes)
    before, draw, episodes = generators.state(), check.draw(), 0
    with generators.installed():
        report.phase("reset", deadline_s)
        found = [digests(lanes.start())]
        for number in range(check.ticks):
            action = random_action(lanes.action, draw, check.lanes)
            report.phase(f"step at tick {number + 1}", deadline_s)
            tick = lanes.step(action)
            found.append(_digests_of(tick))
            episodes += int(np.count_nonzero(tick.end))
    after = generators.state()
    drawn = tuple(name for name in after if name in before and before[name] != after[name])
    report.phase("close", deadline_s)
    lanes.close()
    return _Played(found, episodes, lanes.broken_episodes, lanes.first_broken, drawn)


def _digests_of(tick: Tick) -> dict[str, bytes]:
    arrays: Parts = {**tick.observation, "reward": tick.reward, "end": tick.end, "valid": tick.valid}
    if tick.restart is not None:
        arrays |= {f"restart {name}": array for name, array in tick.restart.observation.items()}
    return digests(arrays)


def digests(arrays: Parts) -> dict[str, bytes]:
    """Eight bytes for each array."""
    return {name: blake2b(array.tobytes(), digest_size=8).digest() for name, array in arrays.items()}


def _actions(check: Check, writer: ActionWriter, count: int) -> list[Any]:
    draw = check.draw()
    return [writer.one(random_action(writer.spec, draw, 1)[0]) for _ in range(count)]


def _samples_repeat(space: gymnasium.Space[Any]) -> bool:
    found = []
    for _ in range(2):
        space.seed(SEED)
        found.append([np.asarray(space.sample()).tobytes() for _ in range(8)])
    return found[0] == found[1]
