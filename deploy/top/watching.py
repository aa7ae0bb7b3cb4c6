"""Following a run until it ends, its driver stays away, or nobody looks any more.

loop     consumes                          produces    waits for          unblocked by
follow   scrapes, the record, keys         screens     a key              the interval
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from common.clock import NS_PER_S, Clock
from common.errors import UnreachableError
from deploy.top.figures import figures_of
from deploy.top.record import Recorded, RecordedRun
from deploy.top.scraping import Scraper, Window
from deploy.top.view import Screen

WINDOW_S = 10.0  # of rates
PATIENCE_S = 30.0  # with a driver that does not answer: about what a restart by its supervisor takes


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """There is nothing more to be seen; `words` says why."""

    words: str


class Watching:
    """A run that is being looked at.

    Args:
        run: its name; "" where only an address is known.
        address: of its driver.
        record: None where it is not to be had.
        scraper: of its processes.
        clock: of how long the driver has been silent.
    """

    def __init__(self, run: str, address: str, record: RecordedRun, scraper: Scraper, clock: Clock) -> None:
        self._run = run
        self._address = address
        self._record = record
        self._scraper = scraper
        self._clock = clock
        self._window = Window(WINDOW_S)
        self._heard_ns = clock.now_ns()

    def look(self) -> Screen | Ended:
        """Ask everybody once.

        A driver that is silent is looked for again where the record says it serves now, which is another address
        after a resume; the screen then shows what was known last.
        """
        try:
            self._window.add(self._scraper.scrape(self._address))
            self._heard_ns = self._clock.now_ns()
            return self._screen(self._record.read(), "")
        except UnreachableError as error:
            return self._without_driver(error, self._record.read())

    def _without_driver(self, error: UnreachableError, recorded: Recorded | None) -> Screen | Ended:
        if recorded is not None and recorded.status not in ("running", "died"):
            return Ended(words=f"{self._run} {recorded.status}: {recorded.verdict}")
        if recorded is not None and recorded.address:
            self._address = recorded.address
        silent_s = (self._clock.now_ns() - self._heard_ns) / NS_PER_S
        if silent_s >= PATIENCE_S:
            if recorded is not None and recorded.status == "died":
                return Ended(words=f"{self._run} died: its driver is gone; go on with `truestep resume {self._run}`")
            silence = f"the driver at {self._address} has not answered for {silent_s:.0f} s"
            return Ended(words=f"{silence}: the run has ended, or cannot be reached from here")
        said = error.got or error.what
        return self._screen(
            recorded, f"the driver has not answered for {silent_s:.0f} s ({said}); figures are of before"
        )

    def _screen(self, recorded: Recorded | None, trouble: str) -> Screen:
        return Screen(
            run=self._run,
            address=self._address,
            figures=figures_of(self._window),
            recorded=recorded,
            trouble=trouble,
        )

    def screens(self) -> Iterator[Screen | Ended]:
        """One look after the other; the last one is `Ended`."""
        while True:
            seen = self.look()
            yield seen
            if isinstance(seen, Ended):
                return
