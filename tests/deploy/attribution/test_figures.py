"""Shares of a window, worked out by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from deploy.attribution.figures import CoreFigures, RankWaits, SlowActor, figures_of
from deploy.attribution.snapshot import from_plain, since, to_plain
from tests.deploy.attribution.windows import actor, host, rank, window


def test_what_lies_before_the_window_does_not_count() -> None:
    """Sums are subtracted, actor by actor; who came later counts from nothing."""
    first, last = window(actors=[actor(0), actor(1)], ranks=[rank(0)])
    before = replace(first, actors=(actor(0, fragments=10, work_s=9.0, blocked_s=0.0, present_s=9.0),))
    now = replace(last, actors=(actor(0, fragments=30, work_s=15.0, blocked_s=4.0, present_s=19.0), actor(1)))
    flow = figures_of([before, now]).flow
    assert flow.blocked == pytest.approx(4.0 / 20.0)
    assert flow.collecting == pytest.approx((6.0 + 10.0) / 20.0)


def test_no_sum_is_as_it_is_now() -> None:
    """Who it is, how full, and what is under way are not subtracted."""
    assert since(actor(3, at_work_s=2.0), actor(3, at_work_s=9.0)).at_work_s == 2.0
    assert since(rank(1, gpu=0.5), rank(1, gpu=0.75)).gpu == 0.5
    assert since(host(memory=0.5), host(memory=None)).memory == 0.5


def test_cores() -> None:
    """4 actors ran 2 s and queued 1 s each, the rank ran 8 s, the driver 1 s and queued 1 s: 5 of 22 s queued, and
    4 s of the 48 s at work."""
    snapshots = window(actors=[actor(n, delay_s=1.0) for n in range(4)], host=host(cpu_s=1.0, delay_s=1.0))
    assert figures_of(snapshots).cores == CoreFigures(queued=5 / 22, delay=4 / 48)


def test_the_slow_actor_is_compared_with_the_median_of_the_others() -> None:
    """0.2, 0.25 and 0.5 s against 1 s; the one under way counts where it has taken longer already."""
    actors = [actor(0, fragments=50), actor(1, fragments=40), actor(2, fragments=20), actor(3, fragments=10)]
    slow = figures_of(window(actors=actors)).slow
    assert slow == SlowActor(actor=3, fragment_s=1.0, others_s=0.25) and slow.times == 4.0
    actors[0] = actor(0, fragments=50, at_work_s=7.0)
    assert figures_of(window(actors=actors)).slow == SlowActor(actor=0, fragment_s=7.0, others_s=0.5)


def test_one_actor_alone_is_not_slow() -> None:
    """Nor is one among those that have not begun."""
    idle = actor(1, fragments=0, work_s=0.0, at_work_s=0.0)
    assert figures_of(window(actors=[actor(0)])).slow is None
    assert figures_of(window(actors=[actor(0), idle])).slow is None


def test_ranks_wait_for_the_one_that_waits_least() -> None:
    """4 of 8 s and 1 of 8 s; checks are those of whoever checks most."""
    waits = figures_of(window(ranks=[rank(0, wait_s=4.0, verify_s=0.4), rank(1, wait_s=1.0, verify_s=0.8)])).waits
    assert waits == RankWaits(most=0.5, least=0.125, awaited=1, checks=0.1)
    assert figures_of(window(ranks=[rank(0)])).waits is None
    assert figures_of(window(ranks=[rank(0), rank(1, orders=0)])).waits is None


def test_disk_memory_and_gpu() -> None:
    """Shares of the window; how full at its end; the mean of what GPUs have said."""
    gauges: dict[str, Any] = {"memory": 0.5, "store": 0.25}
    snapshots = window(
        host=host(writing_s=5.0, queueing_s=2.0, record_s=1.0, **gauges),
        ranks=[rank(0, gpu=0.5, major_faults=20), rank(1, gpu=0.75)],
    )
    figures = figures_of(snapshots)
    assert (figures.disk.writing, figures.disk.queueing, figures.disk.recording) == (0.5, 0.2, 0.1)
    assert (figures.memory.host, figures.memory.store, figures.memory.faults_per_s) == (0.5, 0.25, 2.0)
    assert figures.gpu == 0.625


def test_in_one_process_whoever_is_not_at_work_waits() -> None:
    """6 s of collecting by all actors together and 3 s of learning, of 10 s."""
    actors = [actor(n, work_s=1.5) for n in range(4)]
    flow = figures_of(window(actors=actors, ranks=[rank(0, work_s=3.0)], in_turn=True, asynchronous=False)).flow
    assert (flow.blocked, flow.starved) == (pytest.approx(0.4), pytest.approx(0.7))


def test_a_window_without_time_or_anybody_has_no_shares() -> None:
    """Nothing is divided by nothing."""
    first, last = window()
    figures = figures_of([replace(first, at_s=1.0), replace(last, at_s=1.0, actors=(), ranks=(), ready_s=0.0)])
    assert (figures.flow.starved, figures.flow.blocked, figures.cores.delay, figures.slow) == (0.0, 0.0, 0.0, None)


def test_recordings_read_back() -> None:
    """To 0.1 ms; unknown fields are another release's."""
    _, last = window(host=host(memory=0.123456, record_s=0.1), ranks=[rank(0, gpu=0.5)])
    plain = to_plain(last)
    assert plain["host"]["memory"] == 0.1235
    assert from_plain(plain) == replace(last, host=host(memory=0.1235, record_s=0.1))
    with pytest.raises(TypeError, match="newer"):
        from_plain({**plain, "host": {**plain["host"], "newer": 1}})
