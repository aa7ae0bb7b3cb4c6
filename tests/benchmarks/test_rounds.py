"""Who is measured when, and what becomes of those who are not installed."""

from __future__ import annotations

import pytest

from benchmarks import rounds
from benchmarks.contenders import Contender, NotInstalled, Work
from benchmarks.peers.setting import Setting
from benchmarks.rates import Rate
from benchmarks.report import Spread
from benchmarks.rounds import fastest, interleaved, thread_variants

WORK = Setting(lanes=2, rows=2, minibatch=2)
A, B, C = (Contender(name=name, module="m") for name in "abc")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names in the order of their readings; `c` is not installed, `b` is twice as fast as `a` with each thread."""
    names: list[str] = []

    def reading(contender: Contender, work: Work, *, seconds: float, warmup_s: float) -> Rate:
        names.append(contender.name)
        if contender.name == "c":
            raise NotInstalled("install c")
        return Rate(steps={"a": 100, "b": 200}[contender.name] * contender.threads, seconds=1.0)

    monkeypatch.setattr(rounds, "take_reading", reading)
    return names


def test_each_round_begins_with_another(asked: list[str]) -> None:
    """A machine that slows down while a round goes on is unkind to each in turn."""
    measured = interleaved([A, B], WORK, rounds=3, seconds=1.0, warmup_s=0.0)
    assert asked == ["a", "b", "b", "a", "a", "b"]
    assert measured.rates == {"a": [100.0] * 3, "b": [200.0] * 3} and measured.skipped == {}


def test_who_is_not_installed_is_named_and_asked_once(asked: list[str]) -> None:
    """The others are measured all the same, and nobody is compared with it."""
    measured = interleaved([A, C, B], WORK, rounds=2, seconds=1.0, warmup_s=0.0)
    assert asked.count("c") == 1 and measured.skipped == {"c": "install c"}
    assert measured.ratio("b", "a") == Spread(median=2.0, low=2.0, high=2.0, count=2)
    assert measured.ratio("b", "c") is None


def test_the_fastest_variant_is_kept(asked: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each peer takes part with what serves it best."""
    monkeypatch.setattr(rounds.os, "cpu_count", lambda: 2)
    assert fastest([B, A], WORK, seconds=1.0, warmup_s=0.0) is B
    assert fastest(thread_variants(A), WORK, seconds=1.0, warmup_s=0.0).threads == 2


def test_one_core_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is tried that cannot help."""
    monkeypatch.setattr(rounds.os, "cpu_count", lambda: 1)
    assert [each.threads for each in thread_variants(A)] == [1]
