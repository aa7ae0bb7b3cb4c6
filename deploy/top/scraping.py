"""All processes of a run asked for their metrics at once; who does not answer in time is a fact, no error."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from common.clock import NS_PER_S, Clock
from common.errors import UnreachableError
from common.metrics_reading import Reading, read_metrics
from common.metrics_token import MetricsToken
from deploy.watched import LiveProcess, fetch, processes

ANSWER_S = 2.0
AT_ONCE = 16
DRIVER = "driver"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A process that answered.

    Attributes:
        at_ns: when, on the clock of whoever asked.
        reading: what it said.
    """

    at_ns: int
    reading: Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """A run at one moment.

    Attributes:
        at_ns: when it was begun.
        driver: what its driver said.
        driver_instance: which start of the driver that was; "" while it begins or ends.
        listed: actors and learner ranks that the driver knows.
        seen: those that answered, by instance.
        silent: why the others did not, by instance.
    """

    at_ns: int
    driver: Seen
    driver_instance: str
    listed: tuple[LiveProcess, ...]
    seen: Mapping[str, Seen]
    silent: Mapping[str, str]


class Scraper:
    """Asks the processes of a run; close it when done.

    Args:
        clock: of rates.
        token: that the processes want to be asked with, if any.
        answer_s: for every process, all of them at the same time.
    """

    def __init__(self, clock: Clock, *, token: MetricsToken | None = None, answer_s: float = ANSWER_S) -> None:
        self._clock = clock
        self._token = token
        self._answer_s = answer_s
        self._pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="scrape")

    def scrape(self, address: str) -> Scrape:
        """Ask the driver at `address`, and whom it lists. Raises UnreachableError if the driver itself is silent."""
        at_ns = self._clock.now_ns()
        driver = self._ask(address, "the driver")
        listed = processes(address, token=self._token, timeout_s=self._answer_s)
        others = tuple(process for process in listed if process.role != DRIVER)
        futures = {process: self._pool.submit(self._ask, process.address, process.name) for process in others}
        wait(futures.values(), timeout=2 * self._answer_s)
        seen, silent = self._sorted(futures)
        instance = next((process.instance for process in listed if process.role == DRIVER), "")
        return Scrape(at_ns=at_ns, driver=driver, driver_instance=instance, listed=others, seen=seen, silent=silent)

    def _sorted(self, futures: Mapping[LiveProcess, Future[Seen]]) -> tuple[dict[str, Seen], dict[str, str]]:
        seen: dict[str, Seen] = {}
        silent: dict[str, str] = {}
        for process, future in futures.items():
            if not future.done():
                future.cancel()
                silent[process.instance] = f"no answer within {2 * self._answer_s:g} s"
            elif (error := future.exception()) is not None:
                silent[process.instance] = str(getattr(error, "got", None) or error)
            else:
                seen[process.instance] = future.result()
        return seen, silent

    def _ask(self, address: str, who: str) -> Seen:
        answer = fetch(address, "/metrics", timeout_s=self._answer_s, who=who, token=self._token)
        try:
            if answer.status != 200:
                raise ValueError(f"status {answer.status}")
            reading = read_metrics(answer.body.decode())
        except ValueError as error:
            raise UnreachableError(f"{who} at {address} serves no metrics", got=error) from None
        return Seen(at_ns=self._clock.now_ns(), reading=reading)

    def close(self) -> None:
        """End the threads; requests under way end at their own deadline."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class Window:
    """The scrapes of the last seconds: rates are over all of it, since a fragment or an update may take seconds."""

    def __init__(self, seconds: float) -> None:
        self._ns = round(seconds * NS_PER_S)
        self._scrapes: deque[Scrape] = deque()

    def add(self, scrape: Scrape) -> None:
        """Take in a newer one."""
        self._scrapes.append(scrape)
        while len(self._scrapes) > 2 and scrape.at_ns - self._scrapes[1].at_ns >= self._ns:
            self._scrapes.popleft()

    @property
    def newest(self) -> Scrape | None:
        """The latest."""
        return self._scrapes[-1] if self._scrapes else None

    def rates(self, of: Callable[[Scrape], Seen | None]) -> Rates:
        """How the counters of a process grew from when it was first seen in the window to now."""
        seen = [each for scrape in self._scrapes if (each := of(scrape)) is not None]
        return Rates(before=seen[0], now=seen[-1]) if len(seen) > 1 else Rates()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Two looks at the same start of one process; without both, every rate is None."""

    before: Seen | None = None
    now: Seen | None = None

    def per_second(self, name: str, **labels: str) -> float | None:
        """Growth of a counter a second; with labels of one of its series, else of their sum."""
        if self.before is None or self.now is None or self.now.at_ns <= self.before.at_ns:
            return None
        old, new = (
            seen.reading.value(name, **labels) if labels else seen.reading.total(name)
            for seen in (self.before, self.now)
        )
        if old is None or new is None or new < old:
            return None
        return (new - old) * NS_PER_S / (self.now.at_ns - self.before.at_ns)

    def by(self, name: str, label: str) -> dict[str, float]:
        """Growth a second of each series of a counter, by the value of its label."""
        if self.now is None:
            return {}
        rates = {value: self.per_second(name, **{label: value}) for value in self.now.reading.by(name, label)}
        return {value: rate for value, rate in rates.items() if rate is not None}
