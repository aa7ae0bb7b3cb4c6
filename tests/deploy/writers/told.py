"""Writers that keep what they are told, and a display that does; some go wrong on purpose."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from deploy.display import Progress

LIMIT_S = 20.0


@dataclass(slots=True)
class Keeping:
    """Keeps every call."""

    rows: list[tuple[int, Mapping[str, float]]] = field(default_factory=list)
    calls: list[tuple[str, int]] = field(default_factory=list)
    threads: set[int] = field(default_factory=set)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.threads.add(threading.get_ident())
        self.rows.append((step, values))
        self.calls.append(("scalars", step))

    def undo_after(self, step: int) -> None:
        self.calls.append(("undo_after", step))

    def close(self) -> None:
        self.calls.append(("close", 0))


@dataclass(slots=True)
class Raising(Keeping):
    """Takes no row."""

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        raise OSError(28, "No space left on device")


@dataclass(slots=True)
class Blocked(Keeping):
    """Hangs in its first row until `free` is set."""

    free: threading.Event = field(default_factory=threading.Event)
    entered: threading.Event = field(default_factory=threading.Event)

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self.entered.set()
        assert self.free.wait(LIMIT_S)
        self.calls.append(("scalars", step))


@dataclass(slots=True)
class Heard:
    """A display that keeps what is told."""

    lines: list[str] = field(default_factory=list)

    def show(self, progress: Progress) -> None:
        """Nothing."""

    def tell(self, text: str) -> None:
        self.lines.append(text)

    def close(self) -> None:
        """Nothing."""

    @property
    def warnings(self) -> list[str]:
        return [line for line in self.lines if line.startswith("WARNING")]
