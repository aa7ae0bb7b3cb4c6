"""Calls to processes of Ray that are in flight: answers, failures and missed deadlines, one after the other.

A process answers its calls in order, so only its oldest call is being worked on, and only that one's time runs.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError

from common.clock import Clock, Deadline
from common.errors import TruestepError
from common.metrics import Target
from common.ports import address_of
from common.process_identity import ProcessIdentity
from deploy.conductor.messages import Event
from deploy.ray_endings import Endings
from deploy.ray_processes import Presence

FETCH_S = 60.0


@dataclass(slots=True, kw_only=True, eq=False)
class Process:
    """A process of ours, and what is asked of it.

    Attributes:
        role: "actor" or "learner".
        index: number of the actor, or rank.
        lease: of this start of the process.
        who: in messages.
        handle: Ray's, of the actor that lives in it.
        last_words: file that its watchdog writes before it ends the process.
        presence: None until it has started.
        calls: told and not answered, oldest first.
        aside: told and not answered, that are worked on whatever else is.
    """

    role: Literal["actor", "learner"]
    index: int
    lease: str
    who: str
    handle: Any
    last_words: Path | None = None
    presence: Presence | None = None
    calls: list[Call] = field(default_factory=list)
    aside: list[Call] = field(default_factory=list)

    @property
    def identity(self) -> ProcessIdentity | None:
        """Which process it is; None before it has started."""
        return None if self.presence is None else self.presence.identity

    def target(self, run: str) -> Target | None:
        """Where to scrape it; None before it has started, and where nothing is served."""
        if self.presence is None or not self.presence.metrics_port:
            return None
        return Target(
            role=self.role,
            index=self.index,
            lease=self.lease,
            address=address_of(self.presence.metrics_host, self.presence.metrics_port),
            run=run,
            host=self.presence.identity.host,
            pid=self.presence.identity.pid,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """A call in flight.

    Attributes:
        process: whom it was told.
        reference: of its answer.
        what: it is to do, in words that follow "should".
        limit_s: for it, from when it is the oldest.
        answered: makes the event of its answer, if there is one.
        load: of the large thing that was returned beside the answer by a process of another host. It is fetched before
            the answer counts: a node that is lost takes with it what it alone has.
    """

    process: Process
    reference: Any
    what: str
    limit_s: float
    answered: Callable[[Any], Event | None]
    load: Any = None

    @property
    def awaited(self) -> Any:
        """The reference that says that it is done."""
        return self.reference if self.load is None else self.load


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A call without an answer.

    Attributes:
        call: which.
        cause: what was raised, by our code there or by Ray; None where the deadline has passed.
        within_s: the deadline.
        hurried: it was cut short, since others had given up.
    """

    call: Call
    cause: BaseException | None
    within_s: float = 0.0
    hurried: bool = False

    def words(self) -> tuple[str, str]:
        """The cause in one sentence, and the long material behind it."""
        process, what, cause = self.call.process, self.call.what, self.cause
        if cause is None:
            others = " after the others had given up on it" if self.hurried else ""
            return f"{process.who} did not {what} within {self.within_s:g} s{others}", _last_words(process)
        if isinstance(cause, TruestepError):
            return str(cause), cause.detail
        if isinstance(cause, ActorUnavailableError):
            return f"{process.who} could not be reached while it should {what}", str(cause)
        if isinstance(cause, RayActorError):
            return f"{process.who}: the process ended while it should {what}", _last_words(process) or str(cause)
        story = "".join(traceback.format_exception(cause)).strip()
        return f"{process.who}: {type(cause).__name__} while it should {what}: {cause}", story


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The oldest call of a process, and until when it may take."""

    call: Call
    deadline: Deadline
    hurried: bool = False


class Calls:
    """Every call in flight."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._host = ProcessIdentity.current().host
        self._heads: dict[Any, _Head] = {}

    def expect(
        self,
        process: Process,
        reference: Any,
        what: str,
        limit_s: float,
        answered: Callable[[Any], Event | None],
        *,
        load: Any = None,
    ) -> None:
        """Wait for the answer to a call that was just told.

        Args:
            load: what is returned beside the answer, if that is large and others will need it.
        """
        far = process.identity is not None and process.identity.host != self._host
        call = Call(
            process=process,
            reference=reference,
            what=what,
            limit_s=limit_s,
            answered=answered,
            load=load if far else None,
        )
        process.calls.append(call)
        if len(process.calls) == 1:
            self._attend(process)

    def expect_aside(
        self, process: Process, reference: Any, what: str, limit_s: float, answered: Callable[[Any], Event | None]
    ) -> None:
        """Wait for the answer to a call that does not wait its turn: its time runs at once."""
        call = Call(process=process, reference=reference, what=what, limit_s=limit_s, answered=answered)
        process.aside.append(call)
        self._time(call)

    def next_outcome(self, timeout_s: float) -> Event | Failure | None:
        """The event of the next answer, or the next failure; None after `timeout_s` without, or if it has none."""
        if not self._heads:
            self._clock.sleep(timeout_s)
            return None
        ready, _ = ray.wait(list(self._heads), num_returns=1, timeout=timeout_s, fetch_local=True)
        if not ready:
            return self._overdue()
        call = self._heads.pop(ready[0]).call
        if call in call.process.aside:
            call.process.aside.remove(call)
        else:
            call.process.calls.remove(call)
            self._attend(call.process)
        return outcome_of(call)

    def hurry(self, process: Process, within_s: float) -> None:
        """Give the oldest call of a process `within_s` more at most."""
        for reference, head in self._heads.items():
            if head.call.process is process and within_s < head.deadline.remaining_s():
                self._heads[reference] = _Head(call=head.call, deadline=Deadline(self._clock, within_s), hurried=True)

    def renew(self, call: Call) -> None:
        """Give a call whose deadline has passed the whole of its time once more."""
        self._time(call)

    def forget(self, process: Process) -> None:
        """Wait for no call of a process any more."""
        for call in (*process.calls, *process.aside):
            self._heads.pop(call.awaited, None)
        process.calls.clear()
        process.aside.clear()

    def _attend(self, process: Process) -> None:
        if process.calls:
            self._time(process.calls[0])

    def _time(self, call: Call) -> None:
        self._heads[call.awaited] = _Head(call=call, deadline=Deadline(self._clock, call.limit_s))

    def _overdue(self) -> Failure | None:
        for head in self._heads.values():
            if head.deadline.expired():
                within_s = head.deadline.seconds
                return Failure(call=head.call, cause=None, within_s=within_s, hurried=head.hurried)
        return None


def outcome_of(call: Call) -> Event | Failure | None:
    """The event of a call that has been answered, if there is one, or what was raised instead."""
    try:
        if call.load is not None:
            ray.get(call.load, timeout=FETCH_S)  # raises if it was lost; of what is here nothing is copied
        return call.answered(ray.get(call.reference, timeout=FETCH_S))
    except RayError as error:
        raised = error.cause if isinstance(error, RayTaskError) else None
        return Failure(call=call, cause=raised or error)


class Processes:
    """The processes of one role that live or are being started, by index."""

    def __init__(self, calls: Calls, endings: Endings) -> None:
        self.calls = calls
        self._endings = endings
        self._processes: dict[int, Process] = {}

    def __iter__(self) -> Iterator[Process]:
        return iter(tuple(self._processes.values()))

    def add(self, process: Process) -> None:
        """Take in a process that is being started."""
        self._processes[process.index] = process

    def get(self, index: int) -> Process | None:
        """None where it is lost, or was never started."""
        return self._processes.get(index)

    def end(self, process: Process) -> None:
        """Have it end; none of its calls is waited for any more."""
        self._endings.end(process.handle, process.identity)
        self.calls.forget(process)
        if self._processes.get(process.index) is process:
            del self._processes[process.index]


def _last_words(process: Process) -> str:
    """What the watchdog wrote before it ended the process."""
    if process.last_words is None or not process.last_words.is_file():
        return ""
    return process.last_words.read_text(errors="replace").strip()
