"""Lanes made of single environments: Gymnasium's sync or async vector environment with our `Lane` in each place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.env.carried import uncarry
from actors.env.config import EnvConfig
from actors.env.lane import BROKEN, FAULT, VOIDED, LaneRecipe
from actors.env.lanes import Beat, LaneFacts, Tick, Verdict, Way, no_beat
from actors.env.plain_state import NotPlain
from actors.env.ports import Port
from actors.env.recording import MAX_BYTES_OF_AN_ACTOR
from actors.env.spaces import Parts
from common.errors import CheckpointError, TruestepError
from common.fragment import End

RERUN_CHUNK_S = 0.5  # an episode is run again in pieces of this length, so that each exchange keeps its deadline


class WrappedLanes:
    """See `actors.env.lanes.Lanes`. Always aligned; every episode of every lane has its own seed.

    Args:
        config: what the user said.
        num_lanes: B.
        recipe: what the lanes are made from.
        vectorised: `sync` or `async`.
        port: the vector environment that holds the lanes.
        prove: runs the twin proof; called at most once.
        recording: keep from the start what it takes to run episodes again; else from when the proof says so.
    """

    aligned = True
    ways: tuple[Way, ...] = ("state", "replay")

    def __init__(
        self,
        config: EnvConfig,
        num_lanes: int,
        recipe: LaneRecipe,
        *,
        vectorised: str,
        port: Port,
        prove: Callable[[], Verdict],
        recording: bool = False,
    ) -> None:
        self.num_lanes = num_lanes
        self.observation = recipe.reader.spec
        self.action = recipe.writer.spec
        self.broken_episodes = 0
        self.first_broken = ""
        self._config = config
        self._step_s = config.step_deadline_s
        self._vectorised = vectorised
        self._port = port
        self._prove = prove
        self._verdict: Verdict | None = None
        self._ended = np.zeros(num_lanes, dtype=np.bool_)
        self._current: Parts = {}
        self._recording = recording
        self._failed = False
        self._closed = False

    @property
    def facts(self) -> LaneFacts:
        verdict = self._proven()
        return LaneFacts(
            vectorised=self._vectorised,
            autoreset="NextStep",
            seeding="per_episode",
            restorable=verdict.restores != "no",
            reason=verdict.reason,
            restores=verdict.restores,
            seeded=verdict.seeded,
        )

    @property
    def current(self) -> Parts:
        return self._current

    def open(self) -> None:
        """Construct every lane's environment."""
        self._raise_first(self._called("lane_open", deadline_s=self._config.construct_deadline_s))
        if self._recording:
            self._record()

    def start(self) -> Parts:
        observation, infos = self._guarded(self._port.reset)
        self._note(infos)
        self._ended[:] = False
        self._current = uncarry(observation, self.observation)
        return self._current

    def step(self, action: NDArray[Any]) -> Tick:
        assert action.shape == (self.num_lanes, *self.action.shape), f"actions of shape {action.shape}"
        observation, reward, terminated, truncated, infos = self._guarded(lambda: self._port.step(action))
        broken = self._note(infos)
        end = np.where(terminated, np.uint8(End.TERMINATED), truncated * np.uint8(End.TRUNCATED))
        valid = ~self._ended
        if broken:
            end[broken] = End.BROKEN
            valid[broken] = False
        self._ended = terminated | truncated
        self._current = uncarry(observation, self.observation)
        return Tick(self._current, reward, end, valid, None)

    def snapshot(self) -> dict[str, Any] | None:
        verdict = self._proven()
        return None if verdict.restores == "no" else self.capture(verdict.restores)

    def capture(self, way: Way) -> dict[str, Any] | None:
        """`snapshot` before the proof, which is made with this."""
        lanes = self._called("lane_snapshot" if way == "state" else "lane_recording", deadline_s=self._step_s)
        for lane in lanes:
            if isinstance(lane, NotPlain):
                if way == "state":  # a recording begins anew with the next episode
                    self._verdict = Verdict(restores="no", reason=str(lane))
                return None
        return self._plain(lanes)

    def _record(self) -> None:
        self._called("lane_record", MAX_BYTES_OF_AN_ACTOR // self.num_lanes, deadline_s=self._step_s)
        self._recording = True

    def _proven(self) -> Verdict:
        if self._verdict is None:
            self._verdict = self._prove()
            if self._verdict.restores == "replay" and not (self._recording or self._closed):
                self._record()
        return self._verdict

    def _plain(self, lanes: tuple[Any, ...]) -> dict[str, Any]:
        return {
            "environment": self._config.id,
            "vectorised": self._vectorised,
            "lanes": list(lanes),
            "ended": self._ended.copy(),
            "current": {name: array.copy() for name, array in self._current.items()},
            "broken_episodes": self.broken_episodes,
            "first_broken": self.first_broken,
        }

    def restore(self, plain: dict[str, Any], beat: Beat = no_beat) -> None:
        got = (plain["environment"], plain["vectorised"], len(plain["lanes"]))
        mine = (self._config.id, self._vectorised, self.num_lanes)
        if got != mine:
            raise CheckpointError(
                "environment state: of other lanes", got=got, allowed=mine, fix="resume with the same [env] table"
            )
        if "actions" in plain["lanes"][0]:
            self._run_again(plain["lanes"], beat)
        else:
            self._raise_first(self._called("lane_restore", plain["lanes"], deadline_s=self._step_s))
        self._ended = plain["ended"].copy()
        self._current = {name: array.copy() for name, array in plain["current"].items()}
        self.broken_episodes = plain["broken_episodes"]
        self.first_broken = plain["first_broken"]

    def render(self, lane: int) -> NDArray[np.uint8]:
        pictures = self._called("lane_render", lane, deadline_s=self._step_s)
        self._raise_first(pictures)
        found: NDArray[np.uint8] = pictures[lane]
        return found

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        errors = self._port.close()
        if not self._failed:  # else the first error is on its way up and says more
            self._raise_first(errors)

    def _run_again(self, recordings: list[dict[str, Any]], beat: Beat) -> None:
        """Each lane's current episode from its beginning, in pieces between which `beat` is called."""
        if not self._recording:
            self._record()
        deadline_s = self._step_s
        self._raise_first(self._called("lane_rerun", recordings, deadline_s=deadline_s))
        chunk_s = min(RERUN_CHUNK_S, deadline_s / 2)
        budget_s = chunk_s / self.num_lanes if self._vectorised == "sync" else chunk_s  # one after the other
        while True:
            progress = self._called("lane_go_on", budget_s, deadline_s=deadline_s + chunk_s)
            self._raise_first(progress)
            beat(max(lane.done for lane in progress))
            if all(lane.done == lane.ticks for lane in progress):
                return

    def _note(self, infos: dict[str, Any]) -> list[int]:
        """Raise the first lane's fault, count what broke; the lanes whose episode broke in this tick."""
        if not infos:
            return []
        self._raise_first(infos.get(FAULT, ()))
        broken = {lane: text for lane, text in enumerate(infos.get(BROKEN, ())) if text is not None}
        voided = [entry for entry in infos.get(VOIDED, ()) if entry is not None]
        self.broken_episodes += len(broken) + sum(number for number, _ in voided)
        for text in (*broken.values(), *(text for _, text in voided)):
            self.first_broken = self.first_broken or text
        return list(broken)

    def _called(self, name: str, *args: Any, deadline_s: float) -> tuple[Any, ...]:
        answers: tuple[Any, ...] = self._guarded(lambda: self._port.call(name, *args, deadline_s=deadline_s))
        return answers

    def _guarded(self, exchange: Callable[[], Any]) -> Any:
        try:
            return exchange()
        except TruestepError:
            self._failed = True
            raise

    def _raise_first(self, errors: Any) -> None:
        for error in errors:
            if isinstance(error, TruestepError):
                self._failed = True
                raise error
