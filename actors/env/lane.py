"""One lane: the wrapper around one user environment, inside its own process or ours.

It speaks Gymnasium to the vector environment around it, so it behaves alike under `SyncVectorEnv` and
`AsyncVectorEnv`, and hands on nothing unchecked: neither may cast, broadcast or swallow what the user returned.

Errors travel as values. A lane never raises across the vector environment: it returns the error in its info (or as
the result of a call), because Gymnasium's error queue rebuilds exceptions from their text and loses their fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import gymnasium
import numpy as np
from numpy.typing import NDArray

from actors.env import plain_state
from actors.env.carried import carried_space, carry
from actors.env.construct import put_on_fresh, seed_spaces, set_space_states, space_states
from actors.env.contract import floating_parts, nonfinite, reset_parts, step_parts
from actors.env.recording import Progress, Recording, Rerun
from actors.env.rendering import picture
from actors.env.seat import Seat
from actors.env.spaces import ActionWriter, ObservationReader, Parts, PartViolation
from common.clock import Deadline, MonotonicClock
from common.errors import NonFiniteError, TruestepError
from common.rng import GlobalGenerators

FAULT = "truestep_fault"  # info: the error with which this lane stopped
BROKEN = "truestep_broken"  # info: in words, the non-finite value that broke the episode in this tick
VOIDED = "truestep_voided"  # info: (number, in words) of episodes passed over by this reset: they began non-finite
MAX_VOID_RESETS = 8
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRecipe:
    """How to make one lane's environment, and what it must look like.

    Attributes:
        construct: makes the user's environment; raises our errors.
        observation_space: what every lane must declare.
        action_space: likewise.
        reader: takes observations of that space apart.
        writer: makes actions of that space.
        stop_on_nonfinite: a NaN or infinity raises instead of breaking the episode.
    """

    construct: Callable[[Seat], gymnasium.Env[Any, Any]]
    observation_space: gymnasium.Space[Any]
    action_space: gymnasium.Space[Any]
    reader: ObservationReader
    writer: ActionWriter
    stop_on_nonfinite: bool


class Lane(gymnasium.Env[Any, Any]):
    """One environment under contract. `lane_open` must be called before `reset`.

    Args:
        seat: who it is.
        recipe: what it is made from.
        own_process: it lives in a child process, whose process-wide generators it seeds, saves and restores.
    """

    def __init__(self, seat: Seat, recipe: LaneRecipe, *, own_process: bool) -> None:
        self.observation_space = carried_space(recipe.reader.spec)
        self.action_space = recipe.action_space
        self.metadata = {}
        self._seat = seat
        self._recipe = recipe
        self._env: gymnasium.Env[Any, Any] | None = None
        self._own_process = own_process
        self._globals: GlobalGenerators | None = None
        self._globals_scope = ExitStack()
        self._floating = floating_parts(recipe.reader.spec)
        self._episode = -1
        self._tick = -1
        self._ended = False
        self._last_good: Parts | None = None
        self._recording: Recording | None = None
        self._rerun: Rerun | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin the next episode with its own seed; `seed` and `options` are the vector environment's, unused."""
        self._tick += 1
        try:
            return self._begin_episode()
        except TruestepError as error:
            return self._blank(), {FAULT: error}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Advance by one tick; a lane whose episode has ended (and was restored since) begins the next instead."""
        if self._ended:
            observation, info = self.reset()
            return observation, 0.0, False, False, info
        self._tick += 1
        try:
            return self._advance(action)
        except TruestepError as error:
            return self._blank(), 0.0, False, False, {FAULT: error}

    def lane_open(self) -> TruestepError | None:
        """Construct the environment, compare its spaces with the recipe's, seed its spaces."""
        if self._own_process:
            self._globals = GlobalGenerators(self._seat.child_globals())
            self._globals_scope.enter_context(self._globals.installed())
        try:
            self._env = self._recipe.construct(self._seat)
            self._check_spaces()
        except TruestepError as error:
            return error
        seed_spaces(self._env, self._seat)
        return None

    def lane_snapshot(self) -> dict[str, Any] | plain_state.NotPlain:
        """Everything this lane needs to go on, as plain values; or why that cannot be had."""
        try:
            environment = plain_state.take(self._env)
        except plain_state.NotPlain as reason:
            return reason
        with self._globals_at_rest():
            process_wide = None if self._globals is None else self._globals.state()
        return {
            "episode": self._episode,
            "tick": self._tick,
            "ended": self._ended,
            "last_good": None if self._last_good is None else {k: v.copy() for k, v in self._last_good.items()},
            "globals": process_wide,
            "environment": environment,
        }

    def lane_restore(self, states: list[dict[str, Any]]) -> TruestepError | None:
        """Go on from this lane's own entry of `states`; on a lane that was opened and never reset."""
        state = states[self._seat.lane or 0]
        try:
            put_on_fresh(self._env, state["environment"], self._seat)
        except TruestepError as error:
            return error
        self._episode, self._tick, self._ended = state["episode"], state["tick"], state["ended"]
        self._last_good = state["last_good"]
        if self._globals is not None:
            with self._globals_at_rest():
                self._globals.set_state(state["globals"])
        return None

    def lane_record(self, max_bytes: int) -> None:
        """From the next episode on keep what it takes to run it again."""
        self._recording = Recording(self._recipe.writer.spec, max_bytes)

    def lane_recording(self) -> dict[str, Any] | plain_state.NotPlain:
        """What `lane_rerun` needs to bring a fresh environment here, as plain values; or why that cannot be had."""
        assert self._recording is not None, "lane_record first"
        if self._recording.why_not:
            return plain_state.NotPlain(f"{self._seat.describe(self._tick)}: {self._recording.why_not}")
        where = {"episode": self._episode, "tick": self._tick, "ended": self._ended}
        return {**where, **self._recording.plain()}

    def lane_rerun(self, recordings: list[dict[str, Any]]) -> TruestepError | None:
        """Begin the episode of this lane's own entry of `recordings` again. On a lane that was never reset."""
        rerun = Rerun(recordings[self._seat.lane or 0])
        self._episode, self._tick = rerun.episode - 1, rerun.first_tick
        try:
            set_space_states(self._env, rerun.spaces)
            if self._globals is not None:
                with self._globals_at_rest():
                    self._globals.set_state(rerun.generators)
            self._begin_episode()
        except TruestepError as error:
            return error
        self._rerun = rerun
        return None

    def lane_go_on(self, budget_s: float) -> Progress | TruestepError:
        """Run on, one tick at least, until the episode is where it was or the time is spent; checked when it is."""
        rerun, deadline = self._rerun, Deadline(MonotonicClock(), budget_s)
        assert rerun is not None and self._recording is not None, "lane_rerun first"
        try:
            while rerun.done < rerun.ticks and not self._ended:
                self._tick += 1
                self._advance(rerun.next_action(self._recipe.writer.spec))
                if deadline.expired():
                    break
            if rerun.done == rerun.ticks or self._ended:
                rerun.check(self._recording, ended=self._ended, where=self._seat.describe(self._tick))
        except TruestepError as error:
            return error
        return Progress(rerun.done, rerun.ticks)

    def lane_render(self, lane: int) -> NDArray[np.uint8] | TruestepError | None:
        """A picture of the environment, if this is `lane`; else None."""
        if lane != self._seat.lane:
            return None
        assert self._env is not None, "lane_open first"
        try:
            return self._split(picture, self._seat.run("render", self._tick, self._env.render))
        except TruestepError as error:
            return error

    def lane_close(self) -> TruestepError | None:
        """Close the environment; what its `close` raises is returned."""
        env, self._env = self._env, None
        self._globals_scope.close()
        if env is None:
            return None
        try:
            self._seat.run("close", self._tick, env.close)
        except TruestepError as error:
            return error
        return None

    def close(self) -> None:
        """Nothing: `lane_close` closes, within a deadline."""

    def _begin_episode(self) -> tuple[Any, dict[str, Any]]:
        assert self._env is not None, "lane_open first"
        bad = ("", "")
        for voided in range(MAX_VOID_RESETS):
            self._episode += 1
            seed = self._seat.episode_seed(self._episode)
            self._record_beginning()
            outcome = self._seat.run("reset", self._tick, self._env.reset, seed=seed)
            parts, found = self._read(self._split(reset_parts, outcome), 0.0)
            if found is None:
                self._ended = False
                self._remember(parts)
                return carry(parts), {VOIDED: (voided, self._in_words(bad))} if voided else {}
            bad = found
        raise self._nonfinite_breach(bad, f"; so did {MAX_VOID_RESETS} resets in a row")

    def _advance(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._env is not None, "lane_open first"
        if self._recording is not None:
            self._recording.add(action)
        outcome = self._seat.run("step", self._tick, self._env.step, self._recipe.writer.one(action))
        observation, reward, terminated, truncated = self._split(step_parts, outcome)
        parts, bad = self._read(observation, reward)
        if bad is not None:
            self._ended = True
            assert self._last_good is not None, "an episode begins with a finite observation"
            return carry(self._last_good), 0.0, True, False, {BROKEN: self._in_words(bad)}
        self._ended = terminated or truncated
        self._remember(parts)
        return carry(parts), reward, terminated, truncated, {}

    def _split(self, split: Callable[[Any], T], outcome: Any) -> T:
        try:
            return split(outcome)
        except PartViolation as violation:
            raise self._seat.breach(violation.part, violation.got, violation.expected, tick=self._tick) from None

    def _read(self, observation: Any, reward: float) -> tuple[Parts, tuple[str, str] | None]:
        """Parts in stored form, and what is not finite; under stop_run that raises."""
        parts = self._split(self._recipe.reader.read, observation)
        bad = nonfinite(parts, self._floating, reward)
        if bad is not None and self._recipe.stop_on_nonfinite:
            raise self._nonfinite_breach(bad)
        return parts, bad

    def _nonfinite_breach(self, bad: tuple[str, str], more: str = "") -> NonFiniteError:
        return self._seat.nonfinite(bad[0], bad[1], tick=self._tick, more=more)

    def _in_words(self, bad: tuple[str, str]) -> str:
        return f"{self._seat.describe(self._tick)}: {bad[0]} is {bad[1]}"

    def _remember(self, parts: Parts) -> None:
        if not self._recipe.stop_on_nonfinite:  # copied: many environments return the same array every time
            self._last_good = {name: array.copy() for name, array in parts.items()}
        if self._recording is not None:
            self._recording.observe(parts)

    def _record_beginning(self) -> None:
        self._rerun = None
        if self._recording is None:
            return
        with self._globals_at_rest():
            generators = None if self._globals is None else self._globals.state()
        self._recording.begin(generators=generators, spaces=space_states(self._env))

    def _blank(self) -> Any:
        return carry({name: np.zeros(part.shape, part.dtype) for name, part in self._recipe.reader.spec})

    def _check_spaces(self) -> None:
        assert self._env is not None
        for name in ("observation_space", "action_space"):
            got, expected = getattr(self._env, name), getattr(self._recipe, name)
            if got != expected:
                fix = "lanes of one actor share one space: construct them alike"
                raise self._seat.breach(f"{name} differs from lane 0's", str(got), str(expected), fix=fix)

    @contextmanager
    def _globals_at_rest(self) -> Iterator[None]:
        """Take this process's generators, if they are this lane's, out of use: so their state can be read or set."""
        self._globals_scope.close()
        try:
            yield
        finally:
            if self._globals is not None:
                self._globals_scope.enter_context(self._globals.installed())
