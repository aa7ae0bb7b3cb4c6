"""The bound on what is in flight, and the number of actors: pure controllers, on traces worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.conductor.policies.credits import IDLE_TO_SHRINK, Credits
from deploy.conductor.policies.pool import SHRINK_AFTER, WINDOW, Pool


def commits(credits: Credits, *, full: bool, starved: bool, in_flight: int, times: int) -> None:
    for _ in range(times):
        credits.left(in_flight)
        if full:
            credits.refuse()
        if starved:
            credits.starve()
        credits.commit()


def test_it_doubles_after_two_fulls_in_a_row_if_the_learner_starved() -> None:
    """16, full, full and starved: 32; one full is not enough."""
    credits = Credits(first=16, most=1024)
    commits(credits, full=True, starved=True, in_flight=16, times=1)
    assert credits.capacity == 16
    commits(credits, full=True, starved=False, in_flight=16, times=1)
    assert credits.capacity == 32


def test_it_does_not_grow_while_the_learner_has_work() -> None:
    """Full for ever, never starving: more in flight would only be older."""
    credits = Credits(first=16, most=1024)
    commits(credits, full=True, starved=False, in_flight=16, times=500)
    assert credits.capacity == 16


def test_what_was_starved_of_before_the_last_growth_does_not_count_again() -> None:
    """One starving pays for one doubling."""
    credits = Credits(first=16, most=1024)
    commits(credits, full=True, starved=True, in_flight=16, times=2)
    assert credits.capacity == 32
    commits(credits, full=True, starved=False, in_flight=32, times=50)
    assert credits.capacity == 32


def test_a_commit_that_was_not_full_begins_the_count_anew() -> None:
    """Full, not full, full: not twice in a row."""
    credits = Credits(first=16, most=1024)
    for full in (True, False, True, False, True):
        commits(credits, full=full, starved=True, in_flight=16, times=1)
    assert credits.capacity == 16


@pytest.mark.parametrize(("most", "grown"), [(1024, 1024), (40, 40), (16, 16), (3, 3)])
def test_it_never_grows_beyond_its_cap(most: int, grown: int) -> None:
    """The cap may be no power of two, and below the first capacity."""
    credits = Credits(first=16, most=most)
    commits(credits, full=True, starved=True, in_flight=most, times=100)
    assert credits.capacity == grown


def test_it_shrinks_to_where_it_began_when_it_is_not_used() -> None:
    """64 commits in a row with at most a quarter in flight halve it, down to the first capacity."""
    credits = Credits(first=16, most=1024)
    commits(credits, full=True, starved=True, in_flight=16, times=6)
    assert credits.capacity == 128
    commits(credits, full=False, starved=False, in_flight=4, times=IDLE_TO_SHRINK)
    assert credits.capacity == 64
    commits(credits, full=False, starved=False, in_flight=4, times=5 * IDLE_TO_SHRINK)
    assert credits.capacity == 16


@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(0, 2000)), max_size=200), st.integers(1, 64))
def test_whatever_happens_it_stays_between_its_bounds(trace: list[tuple[bool, bool, int]], most: int) -> None:
    """And gives out nothing beyond its capacity."""
    credits = Credits(first=16, most=most)
    for full, starved, in_flight in trace:
        assert credits.left(in_flight) == max(0, credits.capacity - in_flight)
        commits(credits, full=full, starved=starved, in_flight=in_flight, times=1)
        assert min(16, most) <= credits.capacity <= most


def watch(pool: Pool, *, starved: bool, queued: int = 0, times: int, all_running: bool = True) -> None:
    for _ in range(times):
        pool.commit(starved=starved, queued=queued, needed=2, all_running=all_running)


def test_a_starving_learner_gets_one_actor_after_the_other_up_to_the_bound() -> None:
    """A window of updates is looked at before each."""
    pool = Pool(first=2, least=1, most=4)
    watch(pool, starved=True, times=WINDOW - 1)
    assert pool.target == 2
    watch(pool, starved=True, times=1)
    assert pool.target == 3
    watch(pool, starved=True, times=10 * WINDOW)
    assert pool.target == 4


def test_while_an_actor_starts_nothing_is_concluded() -> None:
    """It has not had its effect yet."""
    pool = Pool(first=2, least=1, most=8)
    watch(pool, starved=True, times=WINDOW)
    watch(pool, starved=True, times=100 * WINDOW, all_running=False)
    assert pool.target == 3


def test_an_actor_too_many_goes_after_long_calm() -> None:
    """Fragments waited for their update all that time; one hungry update begins the count anew."""
    pool = Pool(first=4, least=3, most=4)
    watch(pool, starved=False, queued=2, times=SHRINK_AFTER - 1)
    watch(pool, starved=True, times=1)
    watch(pool, starved=False, queued=2, times=SHRINK_AFTER - 1)
    assert pool.target == 4
    watch(pool, starved=False, queued=2, times=1)
    assert pool.target == 3
    watch(pool, starved=False, queued=2, times=10 * SHRINK_AFTER)
    assert pool.target == 3


def test_in_balance_it_stays_as_it_is() -> None:
    """Seldom starving, no queue: neither more nor fewer."""
    pool = Pool(first=3, least=1, most=8)
    for _ in range(200):
        watch(pool, starved=True, times=1)
        watch(pool, starved=False, queued=1, times=3)
    assert pool.target == 3
