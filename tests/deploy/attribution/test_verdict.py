"""Which verdict which figures get, and that the words say who, how much and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from common.metrics import Stall
from deploy.attribution.verdict import BOUND, DELAY, EASE, FULL, QUEUED, SLOW_TIMES, judge
from tests.deploy.attribution.windows import SECONDS, actor, host, rank, window

SYNCHRONOUS: dict[str, Any] = {"asynchronous": False, "in_flight": 0, "capacity": 0}
IN_TURN: dict[str, Any] = {**SYNCHRONOUS, "in_turn": True}


def actors(*, blocked: float = 0.0, **changes: Any) -> list[Any]:
    """Four alike."""
    return [actor(number, blocked_s=SECONDS * blocked, **changes) for number in range(4)]


def one_slow(*, blocked: float = 0.0) -> list[Any]:
    """Actor 2 takes 2 s for a fragment, the others 0.2 s."""
    slow = actor(2, fragments=5)
    share = 1 - blocked
    quick = {"blocked_s": SECONDS * blocked, "work_s": SECONDS * share, "fragments": round(50 * share)}
    return [*(actor(number, **quick) for number in (0, 1, 3)), slow]


CASES: dict[str, tuple[Stall, dict[str, Any]]] = {
    "a little waiting on either side": (Stall.HEALTHY, {"starved": 0.2, "blocked": 0.2}),
    "a learner without a break": (Stall.HEALTHY, {"starved": 0.0, "blocked": 0.3}),
    "the learner waits": (Stall.ACTOR_BOUND, {"starved": 0.8, "blocked": 0.0}),
    "actors wait": (Stall.LEARNER_BOUND, {"starved": 0.0, "blocked": 0.6}),
    "both wait": (Stall.FLOW_BOUND, {"starved": 0.4, "blocked": 0.5}),
    "one actor is slow, and the learner waits": (Stall.SLOW_ACTOR, {"starved": 0.4, "actors": one_slow()}),
    "one actor is slow, and nobody waits": (Stall.HEALTHY, {"starved": 0.1, "actors": one_slow()}),
    "one actor is on its first fragment for long": (
        Stall.SLOW_ACTOR,
        {"starved": 0.4, "actors": [*actors()[:3], actor(3, fragments=0, work_s=0.0, at_work_s=9.0)]},
    ),
    "synchronous: one actor is slow, and all wait": (
        Stall.SLOW_ACTOR,
        {"starved": 0.8, "actors": one_slow(blocked=0.9), **SYNCHRONOUS},
    ),
    "synchronous: in turn, alike": (Stall.HEALTHY, {"starved": 0.5, "blocked": 0.5, **SYNCHRONOUS}),
    "synchronous: mostly collecting": (Stall.ACTOR_BOUND, {"starved": 0.8, "blocked": 0.2, **SYNCHRONOUS}),
    "synchronous: mostly learning": (Stall.LEARNER_BOUND, {"starved": 0.2, "blocked": 0.8, **SYNCHRONOUS}),
    "one process: alike": (
        Stall.HEALTHY,
        {"actors": actors(work_s=1.25), "ranks": [rank(0, work_s=5.0)], **IN_TURN},
    ),
    "one process: mostly collecting": (
        Stall.ACTOR_BOUND,
        {"actors": actors(work_s=2.0), "ranks": [rank(0, work_s=2.0)], **IN_TURN},
    ),
    "one process: mostly learning": (
        Stall.LEARNER_BOUND,
        {"actors": actors(work_s=0.5), "ranks": [rank(0, work_s=8.0)], **IN_TURN},
    ),
    "a rank is late": (
        Stall.SYNC_BOUND,
        {"ranks": [rank(0, wait_s=4.0), rank(1)]},
    ),
    "a rank is late, and the learner hardly works": (
        Stall.HEALTHY,
        {"ranks": [rank(0, work_s=1.0, wait_s=0.9), rank(1, work_s=1.0)]},
    ),
    "ranks do little but sync": (
        Stall.SYNC_BOUND,
        {"ranks": [rank(0, wait_s=3.0, verify_s=1.5), rank(1, wait_s=3.0, verify_s=1.0)]},
    ),
    "threads queue for cores": (Stall.CPU_OVERSUBSCRIBED, {"actors": actors(cpu_s=2.0, delay_s=4.0)}),
    "threads queue for cores they hardly need": (
        Stall.HEALTHY,
        {"actors": actors(cpu_s=0.2, delay_s=0.6), "ranks": [rank(0, cpu_s=0.5, delay_s=0.5)]},
    ),
    "checkpoints wait for one another": (Stall.IO_BLOCKED, {"host": host(writing_s=10.0, queueing_s=5.0)}),
    "a checkpoint is always being written": (Stall.HEALTHY, {"host": host(writing_s=10.0, queueing_s=1.0)}),
    "the registry's disk is slow": (Stall.IO_BLOCKED, {"host": host(record_s=4.0)}),
    "memory is full": (Stall.MEMORY_BOUND, {"host": host(memory=0.97)}),
    "memory is used well": (Stall.HEALTHY, {"host": host(memory=0.8)}),
    "the object store is full": (Stall.MEMORY_BOUND, {"host": host(memory=0.5, store=0.99)}),
    "pages come back from disk": (Stall.MEMORY_BOUND, {"actors": actors(major_faults=500)}),
    "the GPU waits for the host": (Stall.GPU_IDLE, {"ranks": [rank(0, gpu=0.1)]}),
    "the GPU waits for fragments": (
        Stall.ACTOR_BOUND,
        {"starved": 0.8, "blocked": 0.0, "ranks": [rank(0, work_s=2.0, gpu=0.1)]},
    ),
    "the GPU is used": (Stall.HEALTHY, {"ranks": [rank(0, gpu=0.9)]}),
}


@pytest.mark.parametrize(("verdict", "figures"), CASES.values(), ids=CASES.keys())
def test_each_cause_has_its_verdict(verdict: Stall, figures: dict[str, Any]) -> None:
    """Whatever is not said is as in a healthy run."""
    assert judge(window(**figures)).verdict is verdict


def test_causes_come_before_what_they_cause() -> None:
    """With everything wrong at once, what is taken away first is what all else may follow from."""
    wrong: dict[str, Any] = {
        "starved": 0.4,
        "actors": [actor(n, cpu_s=1.0, delay_s=5.0, blocked_s=5.0, fragments=5 if n == 2 else 50) for n in range(4)],
        "ranks": [rank(0, wait_s=4.0, gpu=0.1), rank(1, gpu=0.1)],
        "host": host(memory=0.99, writing_s=10.0, queueing_s=9.0),
    }
    mended: list[tuple[str, Any]] = [
        ("host", host(writing_s=10.0, queueing_s=9.0)),
        ("actors", [actor(n, blocked_s=5.0, fragments=5 if n == 2 else 50) for n in range(4)]),
        ("host", host()),
        ("actors", [actor(n, blocked_s=5.0) for n in range(4)]),
        ("ranks", [rank(0, gpu=0.1), rank(1, gpu=0.1)]),
        ("ranks", [rank(0), rank(1)]),
        ("actors", [actor(n) for n in range(4)]),
    ]
    found = [judge(window(**wrong)).verdict]
    for name, better in mended:
        wrong[name] = better
        found.append(judge(window(**wrong)).verdict)
    assert found == [
        Stall.MEMORY_BOUND,
        Stall.CPU_OVERSUBSCRIBED,
        Stall.IO_BLOCKED,
        Stall.SLOW_ACTOR,
        Stall.SYNC_BOUND,
        Stall.GPU_IDLE,
        Stall.FLOW_BOUND,
        Stall.HEALTHY,
    ]


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"starved": 0.03, "blocked": 0.61}, ["learner-bound", "97 %", "61 %", "learner.ranks"]),
        ({"starved": 0.8, "blocked": 0.0}, ["actor-bound", "80 %", "actors.num"]),
        ({"starved": 0.4, "blocked": 0.5}, ["flow-bound", "40 %", "50 %", "16 fragments", "flow.most_in_flight"]),
        ({"starved": 0.4, "actors": one_slow()}, ["actor 2 takes 2.0 s", "200 ms", "--process actor-2"]),
        ({"ranks": [rank(0, wait_s=4.0), rank(1)]}, ["50 % of their work for rank 1", "--process learner-1"]),
        ({"host": host(writing_s=9.0, queueing_s=5.0)}, ["I/O-blocked", "50 %", "checkpoint.every"]),
    ],
)
def test_the_words_say_who_how_much_and_what_to_do(figures: dict[str, Any], said: list[str]) -> None:
    """The line that is shown live is their first half, without advice."""
    finding = judge(window(**figures))
    for each in said:
        assert each in finding.words
    assert finding.words.startswith(finding.brief)
    assert ";" in finding.words and ";" not in finding.brief


def test_a_healthy_run_is_not_mentioned_in_the_live_line() -> None:
    """It has words all the same, for the record."""
    finding = judge(window())
    assert finding.brief == ""
    assert finding.words == "healthy: the learner waited 20 % of the time, actors 10 %"


@pytest.mark.parametrize(
    ("verdict", "figures"),
    [
        (Stall.LEARNER_BOUND, {"starved": 0.0, "blocked": BOUND * 0.9}),
        (Stall.ACTOR_BOUND, {"starved": BOUND * 0.9, "blocked": 0.0}),
        (Stall.MEMORY_BOUND, {"host": host(memory=FULL - 0.01)}),
        (Stall.CPU_OVERSUBSCRIBED, {"actors": actors(cpu_s=3.0, delay_s=2.0), "ranks": [rank(0, cpu_s=1.0)]}),
    ],
)
def test_a_verdict_stays_more_easily_than_it_comes(verdict: Stall, figures: dict[str, Any]) -> None:
    """Within a fifth of its limits it is kept, and would not have been found."""
    assert judge(window(**figures)).verdict is Stall.HEALTHY
    assert judge(window(**figures), before=verdict).verdict is verdict


shares = st.floats(0.0, 1.0)


@settings(max_examples=200, deadline=None)
@given(
    starved=shares,
    blocked=shares,
    delay_s=st.floats(0.0, 10.0),
    memory=st.none() | shares,
    wait_s=st.floats(0.0, 8.0),
    before=st.sampled_from(Stall),
    asynchronous=st.booleans(),
)
def test_every_window_has_one_verdict_with_words(
    starved: float,
    blocked: float,
    delay_s: float,
    memory: float | None,
    wait_s: float,
    before: Stall,
    asynchronous: bool,
) -> None:
    """Whatever the figures; judging again what was found gives it again; figures are plain values."""
    snapshots = window(
        starved=starved,
        actors=actors(blocked=blocked, delay_s=delay_s),
        ranks=[rank(0, wait_s=wait_s), rank(1)],
        host=host(memory=memory),
        asynchronous=asynchronous,
    )
    finding = judge(snapshots, before=before)
    assert finding.words
    assert judge(snapshots, before=finding.verdict).verdict is finding.verdict
    assert set(finding.to_plain()) >= {"seconds", "flow", "cores", "disk", "memory"}
    assert EASE < 1.0 < SLOW_TIMES and 0 < DELAY < QUEUED < 1
