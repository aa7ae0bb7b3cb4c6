"""What the record of a run adds to its metrics, where it can be read from here: the goal, events, and the end."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from common.errors import ConfigError, OutputError, RegistryError, RunNotFoundError
from common.run_records import EventRecord
from deploy.outputs import open_registry
from deploy.report import status_of
from deploy.serving import SERVING, driver_address

EVENTS = 6
VERDICT = "VERDICT"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """The record of a run at one moment.

    Attributes:
        status: running, finished, failed, interrupted or died.
        verdict: how it ended; "" while it goes on.
        total_steps: that it is to make.
        events: the newest, oldest first.
        finding: verdict of stall attribution that was noted last, and its words; empty if there was none.
        address: where its driver serves now; "" if nobody drives it.
    """

    status: str
    verdict: str
    total_steps: int
    events: tuple[EventRecord, ...]
    finding: tuple[str, str]
    address: str


class RecordedRun:
    """Reads the record of one run again and again."""

    def __init__(self, run: str, out: Path) -> None:
        self._run = run
        self._out = out
        self._events: list[EventRecord] = []

    def read(self) -> Recorded | None:
        """What is on record now; None where there is no such record here, or it cannot be read just now."""
        try:
            with open_registry(self._out) as registry:
                record = registry.run(self._run)
                after = self._events[-1].sequence if self._events else 0
                self._events += registry.events(self._run, after=after)
                status = status_of(registry, record)
                address = driver_address(registry, self._run) if status == "running" else ""
        except (OutputError, RunNotFoundError, RegistryError):
            return None
        except ConfigError:  # its driver has begun and serves nothing yet
            address = ""
        shown = [event for event in self._events if event.kind not in (SERVING, VERDICT)]
        found = next((event.data for event in reversed(self._events) if event.kind == VERDICT), {})
        return Recorded(
            status=status,
            verdict=record.verdict,
            total_steps=int(record.config.get("steps", 0)),
            events=tuple(shown[-EVENTS:]),
            finding=(str(found.get("verdict", "")), str(found.get("words", ""))),
            address=address,
        )
