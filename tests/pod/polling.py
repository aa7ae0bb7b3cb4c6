"""Probes of a live run as a kubelet asks them: at the address in the run's record, a request at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from common.clock import MonotonicClock
from common.errors import ConfigError, RegistryError, RunNotFoundError
from common.probes import Probe
from common.runs import RunRegistry
from deploy.serving import driver_address
from deploy.watched import fetch
from tests.e2e.in_process import wait_for

ANSWER_S = 15.0  # the manifests' timeoutSeconds
POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a probe was told.

    Attributes:
        status: of HTTP.
        why: the body.
        seconds: that the answer took.
    """

    status: int
    why: str
    seconds: float


@dataclass(slots=True)
class Tally:
    """What many probes were told: how often which status, the longest answer, and every reason of a no."""

    statuses: Counter[int] = field(default_factory=Counter)
    longest_s: float = 0.0
    noes: list[str] = field(default_factory=list)

    def count(self, told: Told) -> None:
        """One more."""
        self.statuses[told.status] += 1
        self.longest_s = max(self.longest_s, told.seconds)
        if told.status != 200:
            self.noes.append(told.why)


class Kubelet:
    """Asks the driver of run `r`."""

    def __init__(self, out: Path) -> None:
        self._out = out

    def serves(self) -> bool:
        """Whether the run is in its record, with an address."""
        try:
            self._address()
        except (ConfigError, RegistryError, RunNotFoundError):
            return False
        return True

    def ask(self, probe: Probe) -> Told:
        """Ask. Raises UnreachableError where no answer comes within `ANSWER_S`."""
        clock = MonotonicClock()
        start_ns = clock.now_ns()
        answer = fetch(self._address(), probe, timeout_s=ANSWER_S, who="the driver")
        seconds = (clock.now_ns() - start_ns) / 1e9
        return Told(status=answer.status, why=answer.body.decode().strip(), seconds=seconds)

    def wait_for(self, probe: Probe, status: int) -> Told:
        """Ask until the answer has this status; returns it."""
        wait_for(self.serves)
        told: list[Told] = []

        def asked() -> bool:
            told[:] = [self.ask(probe)]
            return told[0].status == status

        wait_for(asked)
        return told[0]

    @contextmanager
    def polling(self, probe: Probe) -> Iterator[Tally]:
        """Ask again and again while the block runs."""
        tally, over = Tally(), Event()

        def poll() -> None:
            while not over.wait(POLL_S):
                tally.count(self.ask(probe))

        thread = Thread(target=poll)
        thread.start()
        try:
            yield tally
        finally:
            over.set()
            thread.join(ANSWER_S + POLL_S)

    def _address(self) -> str:
        with RunRegistry.open(self._out / "runs.sqlite", read_only=True) as registry:
            return driver_address(registry, "r")
