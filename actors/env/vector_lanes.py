"""Lanes of an environment that vectorises itself (its registered vector entry point).

Gymnasium knows three ways in which such an environment begins the next episode; the environment must declare which
(`metadata["autoreset_mode"]`), because the observation beside an end flag means something else in each:

    NextStep   the final one; the next step resets         -> aligned lanes
    SameStep   the reset one; the final one is in infos     -> `Tick.restart` holds the reset one
    Disabled   the final one; we reset the ended lanes      -> `Tick.restart` likewise

One seed for all lanes of an actor: the environment seeds its lanes as it likes, and the run's record says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from numpy.typing import NDArray

from actors.env import plain_state
from actors.env.config import EnvConfig
from actors.env.construct import put_on_fresh
from actors.env.contract import (
    floating_parts,
    nonfinite_lanes,
    reset_parts,
    vector_step_parts,
)
from actors.env.lanes import Beat, LaneFacts, Restart, Tick, Verdict, Way, no_beat
from actors.env.rendering import picture
from actors.env.seat import Seat
from actors.env.spaces import ActionWriter, ObservationReader, Parts, PartViolation
from common.errors import CheckpointError, ContractError, NonFiniteError, TruestepError
from common.fragment import End
from common.rng import Purpose

T = TypeVar("T")


class VectorLanes:
    """See `actors.env.lanes.Lanes`.

    A lane whose values are not finite cannot be reset alone. Under a policy other than stop_run it is BROKEN once, then
    stays invalid, with its last good observation, until its own episode ends; other lanes are untouched.

    Args:
        config: what the user said.
        seat: who the environment is; no lane of its own.
        vector: the environment.
        reader, writer: made from its single spaces.
        mode: the autoreset mode it declares.
        prove: runs the twin proof; called at most once.
    """

    ways: tuple[Way, ...] = ("state",)  # lanes cannot be reset alone, with a seed of their episode's own

    def __init__(
        self,
        config: EnvConfig,
        seat: Seat,
        vector: VectorEnv[Any, Any, Any],
        *,
        reader: ObservationReader,
        writer: ActionWriter,
        mode: AutoresetMode,
        prove: Callable[[], Verdict],
    ) -> None:
        self.num_lanes = vector.num_envs
        self.observation = reader.spec
        self.action = writer.spec
        self.aligned = mode is AutoresetMode.NEXT_STEP
        self.broken_episodes = 0
        self.first_broken = ""
        self._config = config
        self._stop_on_nonfinite = config.on_nonfinite == "stop_run"
        self._seat = seat
        self._vector = vector
        self._reader = reader
        self._writer = writer
        self._mode = mode
        self._prove = prove
        self._verdict: Verdict | None = None
        self._floating = floating_parts(reader.spec)
        self._tick = 0
        self._ended = np.zeros(self.num_lanes, dtype=np.bool_)
        self._broken = np.zeros(self.num_lanes, dtype=np.bool_)
        self._doomed: dict[int, tuple[str, str]] = {}  # lanes whose reset observation was not finite
        self._current: Parts = {}
        self._failed = False
        self._closed = False

    @property
    def facts(self) -> LaneFacts:
        if self._verdict is None:
            self._verdict = self._prove()
        return LaneFacts(
            vectorised="own",
            autoreset=self._mode.value,
            seeding="per_actor",
            restorable=self._verdict.restores != "no",
            reason=self._verdict.reason,
            restores=self._verdict.restores,
            seeded=self._verdict.seeded,
        )

    @property
    def current(self) -> Parts:
        return self._current

    def start(self) -> Parts:
        outcome = self._run("reset", self._vector.reset, seed=self._seat.seed(Purpose.ENVIRONMENT))
        parts = self._split(self._read, self._split(reset_parts, outcome))
        for lane, bad in nonfinite_lanes(parts, self._floating, np.zeros(self.num_lanes)).items():
            raise self._nonfinite_breach(lane, bad)  # under every policy: there is no good observation to keep
        self._keep(parts)
        return self._current

    def step(self, action: NDArray[Any]) -> Tick:
        assert action.shape == (self.num_lanes, *self.action.shape), f"actions of shape {action.shape}"
        self._tick += 1
        outcome = self._run("step", self._vector.step, self._writer.batch(action))
        observation, reward, terminated, truncated, infos = self._split(self._checked, outcome)
        ended = terminated | truncated
        end = np.where(terminated, np.uint8(End.TERMINATED), truncated * np.uint8(End.TRUNCATED))
        fresh, self._ended = self._ended, ended if self.aligned else self._ended
        valid = ~fresh
        if self.aligned:
            self._check_next_step(fresh & ended, infos)
            self._reset_tick(fresh, reward)
        doomed, self._doomed = self._doomed, {}
        restart = None
        if not self.aligned and ended.any():
            observation, restart = self._restart(observation, ended, infos)
        tick = Tick(observation, reward, end, valid, restart)
        tick = self._void_nonfinite(tick, ended, doomed)
        self._keep(tick.observation if restart is None else _with_rows(tick.observation, restart))
        return tick

    def snapshot(self) -> dict[str, Any] | None:
        return self.capture("state") if self.facts.restorable else None

    def capture(self, way: Way) -> dict[str, Any] | None:
        """`snapshot` before the proof, which is made with this."""
        assert way == "state", "the only way of an environment that vectorises itself"
        try:
            state = plain_state.take(self._vector)
        except plain_state.NotPlain as reason:
            self._verdict = Verdict(restores="no", reason=str(reason))
            return None
        return {
            "environment": self._config.id,
            "vectorised": "own",
            "state": state,
            "tick": self._tick,
            "ended": self._ended.copy(),
            "broken": self._broken.copy(),
            "doomed": [[lane, field, value] for lane, (field, value) in self._doomed.items()],
            "current": {name: array.copy() for name, array in self._current.items()},
            "broken_episodes": self.broken_episodes,
            "first_broken": self.first_broken,
        }

    def restore(self, plain: dict[str, Any], beat: Beat = no_beat) -> None:
        got = (plain["environment"], plain["vectorised"], len(plain["ended"]))
        mine = (self._config.id, "own", self.num_lanes)
        if got != mine:
            raise CheckpointError(
                "environment state: of other lanes", got=got, allowed=mine, fix="resume with the same [env] table"
            )
        put_on_fresh(self._vector, plain["state"], self._seat)
        self._tick = plain["tick"]
        self._ended, self._broken = plain["ended"].copy(), plain["broken"].copy()
        self._doomed = {lane: (field, value) for lane, field, value in plain["doomed"]}
        self._current = {name: array.copy() for name, array in plain["current"].items()}
        self.broken_episodes = plain["broken_episodes"]
        self.first_broken = plain["first_broken"]

    def render(self, lane: int) -> NDArray[np.uint8]:
        pictures = self._run("render", self._vector.render)
        return self._split(picture, pictures[lane] if isinstance(pictures, tuple | list) else pictures)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            self._seat.run("close", self._tick, self._vector.close)
        except TruestepError:
            if not self._failed:  # else the first error is on its way up and says more
                raise

    def _check_next_step(self, twice: NDArray[np.bool_], infos: dict[str, Any]) -> None:
        """What gives away an environment that declares NextStep and resets within the step all the same."""
        fix = "declare the autoreset_mode that the environment really has"
        if twice.any():
            got = f"lanes {np.flatnonzero(twice)} ended in the tick after an end"
            raise self._breach("end flags", got, "NextStep, as declared: that tick resets and ends nothing", fix=fix)
        if "final_obs" in infos:
            got = "final observations in infos"
            raise self._breach("final_obs", got, "NextStep, as declared: the observation is the final one", fix=fix)

    def _reset_tick(self, fresh: NDArray[np.bool_], reward: NDArray[np.float64]) -> None:
        reward[fresh] = 0.0
        self._broken &= ~fresh

    def _restart(self, observation: Parts, ended: NDArray[np.bool_], infos: dict[str, Any]) -> tuple[Parts, Restart]:
        """True next observations, and the observations with which the ended lanes began again."""
        lanes = np.flatnonzero(ended)
        truth = {name: array.copy() for name, array in observation.items()}
        if self._mode is AutoresetMode.SAME_STEP:
            final = self._split(lambda found: self._final_rows(found, lanes), infos.get("final_obs"))
            began = {name: array[lanes] for name, array in observation.items()}
            truth = _with_rows(truth, Restart(lanes, final))
        else:
            outcome = self._run("reset", self._vector.reset, options={"reset_mask": ended.copy()})
            parts = self._split(self._read, self._split(reset_parts, outcome))
            began = {name: array[lanes] for name, array in parts.items()}
        for row, bad in nonfinite_lanes(began, self._floating, np.zeros(len(lanes))).items():
            lane = int(lanes[row])
            if self._stop_on_nonfinite:
                raise self._nonfinite_breach(lane, bad)
            self._doomed[lane] = bad
            for name, array in began.items():
                array[row] = self._current[name][lane]
        return truth, Restart(lanes, began)

    def _final_rows(self, final: Any, lanes: NDArray[np.int64]) -> Parts:
        """Final observations `[len(lanes), *shape]` out of `infos["final_obs"]`: objects by lane, or batched."""
        if final is None:
            raise PartViolation("final_obs", "nothing in infos", f"SameStep: the final observation of lanes {lanes}")
        if isinstance(final, np.ndarray) and final.dtype == object:
            rows = [self._reader.read(final[lane]) for lane in lanes]
            return {name: np.stack([row[name] for row in rows]) for name, _ in self.observation}
        return {name: array[lanes] for name, array in self._read(final).items()}

    def _void_nonfinite(self, tick: Tick, ended: NDArray[np.bool_], doomed: dict[int, tuple[str, str]]) -> Tick:
        """Break the lanes that are not finite in this tick, keep broken ones invalid; most ticks pass unchanged."""
        bad = nonfinite_lanes(tick.observation, self._floating, tick.reward)
        if not (bad or doomed or self._broken.any()):
            return tick
        newly = {lane: found for lane, found in sorted((bad | doomed).items()) if not self._broken[lane]}
        for lane, found in newly.items():
            self._count(lane, found)
        self._broken[list(newly)] = True
        observation = {name: array.copy() for name, array in tick.observation.items()}
        for name, array in observation.items():
            array[self._broken] = self._current[name][self._broken]
        tick.reward[self._broken] = 0.0
        tick.end[self._broken] = End.CONTINUES
        tick.end[list(newly)] = End.BROKEN
        tick.valid[self._broken] = False
        if not self.aligned:
            self._broken &= ~ended
        return tick._replace(observation=observation)

    def _count(self, lane: int, bad: tuple[str, str]) -> None:
        if self._stop_on_nonfinite:
            raise self._nonfinite_breach(lane, bad)
        self.broken_episodes += 1
        words = f"{self._seat.describe(self._tick, lane)}: {bad[0]} is {bad[1]}"
        self.first_broken = self.first_broken or words

    def _keep(self, parts: Parts) -> None:
        if not self._stop_on_nonfinite:  # copied: an environment may return the same array every time
            parts = {name: array.copy() for name, array in parts.items()}
        self._current = parts

    def _checked(self, outcome: Any) -> tuple[Parts, NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_], Any]:
        observation, reward, terminated, truncated, infos = vector_step_parts(outcome, self.num_lanes)
        return self._read(observation), reward, terminated, truncated, infos

    def _read(self, observation: Any) -> Parts:
        return self._reader.read_batch(observation, self.num_lanes)

    def _run(self, method: str, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        try:
            return self._seat.run(method, self._tick, function, *args, **kwargs)
        except TruestepError:
            self._failed = True
            raise

    def _split(self, split: Callable[[Any], T], outcome: Any) -> T:
        try:
            return split(outcome)
        except PartViolation as violation:
            raise self._breach(violation.part, violation.got, violation.expected) from None

    def _nonfinite_breach(self, lane: int, bad: tuple[str, str]) -> NonFiniteError:
        self._failed = True
        return self._seat.nonfinite(f"lane {lane}, {bad[0]}", bad[1], tick=self._tick)

    def _breach(self, key: str, got: str, expected: str, *, fix: str = "") -> ContractError:
        self._failed = True
        return self._seat.breach(key, got, expected, tick=self._tick, fix=fix)


def declared_mode(vector: VectorEnv[Any, Any, Any], seat: Seat) -> AutoresetMode:
    """The autoreset mode in the environment's metadata. Raises `ContractError` where there is none."""
    declared = (vector.metadata or {}).get("autoreset_mode")
    try:
        return AutoresetMode(declared)
    except ValueError:
        raise seat.breach(
            'metadata["autoreset_mode"]',
            repr(declared),
            "gymnasium.vector.AutoresetMode.NEXT_STEP, SAME_STEP or DISABLED",
            fix="declare it in the vector environment's metadata: without it an observation beside an end flag "
            "may be the final one or the next episode's first",
        ) from None


def _with_rows(parts: Parts, restart: Restart) -> Parts:
    """A copy of `parts` in which the lanes of `restart` hold its observations."""
    changed = {name: array.copy() for name, array in parts.items()}
    for name, array in changed.items():
        array[restart.lanes] = restart.observation[name]
    return changed
