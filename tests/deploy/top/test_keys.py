"""Keys of a terminal, which is left as it was found."""

from __future__ import annotations

import os
import pty
import sys
import termios
from collections.abc import Iterator
from io import StringIO

import pytest

from common.clock import ManualClock
from deploy.top.keys import keys


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The other end of a terminal that stands for stdin."""
    outer, inner = pty.openpty()
    with os.fdopen(inner, "r") as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield outer
    os.close(outer)


def test_a_key_is_there_without_enter_and_each_counts_once(terminal: int) -> None:
    """Two at once are two; then there is none, however short the wait."""
    with keys(ManualClock()) as wait_key:
        os.write(terminal, b"xq")
        assert [wait_key(60.0), wait_key(60.0), wait_key(0.0)] == ["x", "q", ""]


def test_the_terminal_is_left_as_it_was(terminal: int) -> None:
    """Whatever ended the watching."""
    before = termios.tcgetattr(sys.stdin.fileno())
    with pytest.raises(KeyboardInterrupt), keys(ManualClock()):
        assert termios.tcgetattr(sys.stdin.fileno()) != before
        raise KeyboardInterrupt
    assert termios.tcgetattr(sys.stdin.fileno()) == before


def test_without_a_terminal_time_passes_and_no_key_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe is never read: it may be somebody's data."""
    monkeypatch.setattr(sys, "stdin", StringIO("q"))
    clock = ManualClock()
    with keys(clock) as wait_key:
        assert wait_key(2.0) == ""
    assert (clock.now_ns(), sys.stdin.read()) == (2_000_000_000, "q")
