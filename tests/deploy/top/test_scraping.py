"""Real servers asked all at once: who answers is read, who does not is named, and nothing is raised for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from common.clock import MonotonicClock
from common.errors import UnreachableError
from common.metrics import DriverMetrics
from deploy.top import scraping
from deploy.top.scraping import Scraper
from deploy.watched import Answer, fetch, processes
from tests.deploy.live import live_run, target_of
from tests.deploy.test_watched import closed_port


@pytest.fixture
def scraper() -> Iterator[Scraper]:
    scraper = Scraper(MonotonicClock(), answer_s=5.0)
    yield scraper
    scraper.close()


def test_every_process_is_read(scraper: Scraper) -> None:
    """The driver's figures, and those of everybody that it lists."""
    with live_run() as run:
        metrics = DriverMetrics(run.registries["driver"])
        metrics.set_progress(updates=3, env_steps=30, version=1, term=0, policy_lag=0, per_second=None)
        seen = scraper.scrape(run.address)
    assert seen.driver.reading.value("truestep_driver_env_steps_total") == 30
    assert seen.driver_instance == "driver-0-abc"
    assert sorted(seen.seen) == ["actor-0-abc", "learner-0-abc"] and seen.silent == {}
    assert seen.seen["actor-0-abc"].at_ns >= seen.at_ns


def test_one_that_is_gone_and_one_that_is_no_process_of_ours_are_named(scraper: Scraper) -> None:
    """The others are read all the same."""
    with live_run() as run:
        run.targets += [target_of("actor", 1, closed_port()), target_of("actor", 2, "127.0.0.1:1")]
        seen = scraper.scrape(run.address)
    assert "actor-0-abc" in seen.seen
    assert "refused" in seen.silent["actor-1-abc"]


def test_one_that_hangs_costs_no_more_than_the_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the connection and answers nothing: the others are not waited for any longer than for it."""
    hung, let_go = target_of("actor", 1, "127.0.0.1:1"), threading.Event()

    def patient(address: str, path: str, **options: Any) -> Answer:
        if address == hung.address:
            let_go.wait(60)
        return fetch(address, path, **{**options, "timeout_s": 60})

    monkeypatch.setattr(scraping, "fetch", patient)
    monkeypatch.setattr(scraping, "processes", lambda address, **_: processes(address, timeout_s=60))
    scraper = Scraper(MonotonicClock(), answer_s=0.05)
    with live_run() as run:
        run.targets.append(hung)
        seen = scraper.scrape(run.address)
    let_go.set()
    scraper.close()
    assert seen.silent["actor-1-abc"] == "no answer within 0.1 s"


def test_a_driver_that_does_not_answer_is_an_error(scraper: Scraper) -> None:
    """Without it nothing is known."""
    with pytest.raises(UnreachableError, match="the driver at"):
        scraper.scrape(closed_port())


def test_a_driver_that_begins_lists_nobody(scraper: Scraper) -> None:
    """Its own figures are there already."""
    with live_run() as run:
        run.targets.clear()
        seen = scraper.scrape(run.address)
    assert (seen.driver_instance, seen.listed, dict(seen.seen)) == ("", (), {})
