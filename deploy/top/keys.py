"""Single keys from a terminal, without waiting for Enter; nothing where there is no terminal."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from common.clock import Clock


@contextmanager
def keys(clock: Clock) -> Iterator[Callable[[float], str]]:
    """A function that waits up to so many seconds for a key; "" if none came. The terminal is left as it was."""
    if not sys.stdin.isatty():
        yield lambda seconds: _slept(clock, seconds)
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield _key
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


def _slept(clock: Clock, seconds: float) -> str:
    clock.sleep(seconds)
    return ""


def _key(seconds: float) -> str:
    descriptor = sys.stdin.fileno()
    readable, _, _ = select.select([descriptor], [], [], seconds)
    return os.read(descriptor, 1).decode(errors="replace") if readable else ""  # unbuffered, as select sees it
