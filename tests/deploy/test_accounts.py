"""produced = trained + dropped + in flight, in valid transitions."""

from __future__ import annotations

from deploy.conductor.accounts import OLD_LEASE, SKIPPED, Accounts
from tests.deploy.simulation import summary_of


def test_what_is_in_flight_is_what_was_neither_trained_nor_dropped() -> None:
    """Golden: 10 + 6 produced, 10 trained, 4 dropped for two reasons: 2 in flight."""
    accounts = Accounts()
    accounts.produce(summary_of(num_valid=10))
    accounts.produce(summary_of(num_valid=6))
    assert accounts.in_flight == 16
    accounts.trained += 10
    accounts.drop(SKIPPED, 1)
    accounts.drop(OLD_LEASE, 2)
    accounts.drop(SKIPPED, 1)
    assert accounts.dropped == {"skipped": 2, "old_lease": 2}
    assert (accounts.dropped_total, accounts.in_flight) == (4, 2)


def test_a_fragment_counts_with_its_episodes_and_what_it_lost() -> None:
    """Voided transitions were never produced."""
    accounts = Accounts()
    accounts.produce(summary_of(num_valid=5, num_voided=3, episode_returns=(1.0, 2.0), episode_lengths=(1, 1)))
    assert (accounts.produced, accounts.voided, accounts.episodes) == (5, 3, 2)


def test_nothing_dropped_is_no_reason() -> None:
    """A reason stands in the accounts only with a number."""
    accounts = Accounts()
    accounts.drop(SKIPPED, 0)
    assert accounts.dropped == {}


def test_a_copy_is_the_counts_as_they_were() -> None:
    """Through plain values, and aliasing nothing."""
    accounts = Accounts(produced=9, trained=4, dropped={"stale": 2}, fragments_lost=1, voided=3, episodes=5)
    copy = accounts.copy()
    assert copy == accounts
    assert Accounts(**accounts.to_plain()) == accounts
    copy.drop("stale", 1)
    assert accounts.dropped == {"stale": 2}
