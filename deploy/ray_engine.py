"""Engine ray: every actor and every learner rank in a process of its own; the driver moves references, never data."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import ray

from common.clock import Clock
from common.metrics import Target
from common.process_identity import Liveness, ProcessIdentity
from deploy.compose import Composition
from deploy.conductor.messages import ActorCommand, Event, Handle
from deploy.engines import EngineCommand
from deploy.ray_actors import RayActors
from deploy.ray_calls import FETCH_S, Calls, Failure, Processes
from deploy.ray_endings import Endings
from deploy.ray_placement import Placement
from deploy.ray_processes import ProcessSetup
from deploy.ray_ranks import RayRanks
from learner.state import InitialWeights, LearnerState

CLOSE_S = 10.0


class RayEngine:
    """Carries out commands as calls to Ray actors; an answer, a death or a missed deadline becomes an event.

    Args:
        composition: the run.
        setup: what each process is told.
        clock: of deadlines.
        placement: where Ray puts each process.
    """

    def __init__(self, composition: Composition, setup: ProcessSetup, clock: Clock, placement: Placement) -> None:
        self._run = composition.run
        self._last_words = Path(tempfile.mkdtemp(prefix="truestep-"))
        self._calls = Calls(clock)
        self._endings = Endings(clock)
        self._processes = {role: Processes(self._calls, self._endings) for role in ("actor", "learner")}
        actors, ranks = self._processes["actor"], self._processes["learner"]
        self._actors = RayActors(composition, setup, actors, placement, last_words=self._last_words)
        self._ranks = RayRanks(composition, setup, ranks, placement)

    def carry_out(self, command: EngineCommand) -> None:
        if isinstance(command, ActorCommand):
            self._actors.carry_out(command)
        else:
            self._ranks.carry_out(command)

    def next_event(self, timeout_s: float) -> Event | None:
        self._endings.enforce()
        outcome = self._calls.next_outcome(timeout_s)
        if not isinstance(outcome, Failure):
            return outcome
        of_actor = outcome.call.process.role == "actor"
        return self._actors.failed(outcome) if of_actor else self._ranks.failed(outcome)

    def put_frame(self, frame: bytes) -> Handle:
        return ray.put(np.frombuffer(frame, dtype=np.uint8))

    def get_frame(self, handle: Handle) -> bytes:
        document: Any = ray.get(handle, timeout=FETCH_S)
        return bytes(document.data)

    def put_state(self, state: LearnerState | InitialWeights) -> Handle:
        return ray.put(state)

    def get_state(self, handle: Handle) -> LearnerState:
        state: Any = ray.get(handle, timeout=FETCH_S)
        assert isinstance(state, LearnerState)
        return state

    def targets(self) -> list[Target]:
        """Of those that live. Who dies while nothing is asked of it is noticed here first, if it is on this host."""
        here = ProcessIdentity.current()
        found = [
            process.target(self._run)
            for processes in self._processes.values()
            for process in processes
            if process.identity is not None and process.identity.liveness(here) is not Liveness.DEAD
        ]
        return [target for target in found if target is not None]

    def close(self) -> list[str]:
        self._ranks.prepare_close()
        faults = self._actors.close()
        faults += self._ranks.close()
        self._endings.wait(CLOSE_S)
        for file in self._last_words.iterdir():
            file.unlink(missing_ok=True)
        self._last_words.rmdir()
        return faults
