"""Talking to Gymnasium's vector environments: in our process, or in children with a deadline on every wait."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from multiprocessing import connection
from typing import Any, Protocol

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from numpy.typing import NDArray

from actors.env.seat import Seat
from common.errors import DeadlineError, EnvironmentFault, TruestepError

DEATH_NOTICE_S = 5.0  # between a child's pipe closing and its exit status


class Port(Protocol):
    """A vector environment of lanes. Its `Lane`s return errors as values; what a port raises is about processes."""

    def reset(self) -> tuple[Any, dict[str, Any]]:
        """Reset all lanes: batched carried observation, infos."""
        ...

    def step(self, action: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Advance all lanes: Gymnasium's five values."""
        ...

    def call(self, name: str, *args: Any, deadline_s: float) -> tuple[Any, ...]:
        """Call a method of every lane; results by lane."""
        ...

    def close(self) -> list[TruestepError]:
        """Close all lanes; what went wrong."""
        ...


class SyncPort:
    """Lanes in our own process. Nothing can interrupt user code here: the worker's watchdog ends the process."""

    def __init__(self, vector: SyncVectorEnv[Any, Any]) -> None:
        self._vector = vector

    def reset(self) -> tuple[Any, dict[str, Any]]:
        return self._vector.reset()

    def step(self, action: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        return self._vector.step(action)

    def call(self, name: str, *args: Any, deadline_s: float) -> tuple[Any, ...]:
        return self._vector.call(name, *args)

    def close(self) -> list[TruestepError]:
        errors = self._vector.call("lane_close")
        self._vector.close()
        return [error for error in errors if error is not None]


class AsyncPort:
    """Lanes in child processes. Raises `DeadlineError` for a child that does not answer, `EnvironmentFault` for one
    that is gone; after either only `close` may be called."""

    def __init__(self, vector: AsyncVectorEnv[Any, Any], seat: Seat, deadline_s: float) -> None:
        self._vector = vector
        self._seat = seat
        self._deadline_s = deadline_s
        self._usable = True

    def reset(self) -> tuple[Any, dict[str, Any]]:
        answer: tuple[Any, dict[str, Any]] = self._exchange(
            "reset", self._vector.reset_async, self._vector.reset_wait, self._deadline_s
        )
        return answer

    def step(self, action: NDArray[Any]) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        answer: tuple[Any, Any, Any, Any, dict[str, Any]] = self._exchange(
            "step", lambda: self._vector.step_async(action), self._vector.step_wait, self._deadline_s
        )
        return answer

    def call(self, name: str, *args: Any, deadline_s: float) -> tuple[Any, ...]:
        answer: tuple[Any, ...] = self._exchange(
            name, lambda: self._vector.call_async(name, *args), self._vector.call_wait, deadline_s
        )
        return answer

    def close(self) -> list[TruestepError]:
        """Ask every lane to close, within the deadline; then no child is left, whatever it was doing."""
        if self._vector.closed:
            return []
        errors: list[TruestepError] = []
        if self._usable:
            try:
                answers = self.call("lane_close", deadline_s=self._deadline_s)
                errors = [error for error in answers if error is not None]
            except TruestepError as error:
                errors = [error]
        self._end_children()
        return errors

    def _exchange(self, method: str, send: Callable[[], None], wait: Callable[..., Any], deadline_s: float) -> Any:
        try:
            send()
            return wait(timeout=deadline_s)
        except multiprocessing.TimeoutError:
            self._usable = False
            raise self._late(method, deadline_s) from None
        except (EOFError, OSError):
            self._usable = False
            raise self._lost(method) from None

    def _late(self, method: str, deadline_s: float) -> DeadlineError:
        lanes = [lane for lane, pipe in enumerate(self._vector.parent_pipes) if not pipe.poll(0)]
        return DeadlineError(
            f"{self._seat.describe()} waited for {method.removeprefix('lane_')} of lanes {lanes}",
            got=f"no answer in {deadline_s:g} s",
            allowed=f"{deadline_s:g} s",
            fix="mend the environment that hangs, or raise env.step_deadline_s or env.construct_deadline_s",
        )

    def _lost(self, method: str) -> EnvironmentFault:
        sentinels = {process.sentinel: lane for lane, process in enumerate(self._vector.processes)}
        ready = connection.wait(list(sentinels), DEATH_NOTICE_S)
        dead = sorted(lane for sentinel, lane in sentinels.items() if sentinel in ready)
        for lane in dead:
            self._vector.processes[lane].join(DEATH_NOTICE_S)  # its pipes close a moment before it has an exit status
        codes = {lane: self._vector.processes[lane].exitcode for lane in dead}
        return EnvironmentFault(
            f"{self._seat.describe(lane=dead[0] if dead else None)}: its process ended during "
            f"{method.removeprefix('lane_')}",
            got=", ".join(f"lane {lane} {exit_in_words(code)}" for lane, code in codes.items()) or "no exit status",
            fix="the environment ended its own process; what it wrote to stderr is in the actor's log",
        )

    def _end_children(self) -> None:
        """Not `AsyncVectorEnv.close`: that waits without limit for pipes and for processes that ignore a signal."""
        for process in self._vector.processes:
            process.kill()
        for process in self._vector.processes:
            process.join(DEATH_NOTICE_S)
        for pipe in self._vector.parent_pipes:
            pipe.close()
        self._vector.error_queue.close()
        self._vector.closed = True


def exit_in_words(code: int | None) -> str:
    """How a process ended, from its exit code."""
    if code is None:
        return "has no exit status"
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
    return f"was killed by signal {-code} ({name})"
