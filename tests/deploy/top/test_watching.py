"""Following a run over its end, a restart of its driver, and a driver that stays away."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from common.clock import ManualClock, MonotonicClock, wait_until
from common.errors import UnreachableError
from common.metrics import DriverMetrics
from common.runs import RunRegistry
from deploy.cli import main
from deploy.outputs import REGISTRY_FILE
from deploy.serving import record_serving
from deploy.top.record import Recorded, RecordedRun
from deploy.top.scraping import Scrape
from deploy.top.view import Screen
from deploy.top.watching import PATIENCE_S, Ended, Watching
from tests.common.test_profiling import thread_of
from tests.deploy.live import live_run
from tests.deploy.test_watched import closed_port
from tests.deploy.top.looks import scrape
from tests.deploy.top.test_view import recorded


@dataclass
class Fake:
    """A scraper and a record that say what the test has put there."""

    answers: dict[str, Scrape] = field(default_factory=dict)
    record: Recorded | None = None
    asked: list[str] = field(default_factory=list)

    def scrape(self, address: str) -> Scrape:
        self.asked.append(address)
        if address not in self.answers:
            raise UnreachableError(f"the driver at {address} does not answer", got="refused")
        return self.answers[address]

    def read(self) -> Recorded | None:
        return self.record


def watching(fake: Fake, clock: ManualClock) -> Watching:
    return Watching("r", "h:1", fake, fake, clock)  # type: ignore[arg-type]


def test_a_run_that_ends_says_how() -> None:
    """As soon as its driver is silent and the record has the end."""
    fake, clock = Fake({"h:1": scrape(0, {})}, recorded()), ManualClock()
    run = watching(fake, clock)
    assert isinstance(run.look(), Screen)
    fake.answers.clear()
    fake.record = recorded(status="finished", verdict="all 5,000 steps made")
    assert run.look() == Ended(words="r finished: all 5,000 steps made")


def test_a_driver_that_was_started_again_is_found_where_it_serves_now() -> None:
    """Until then the figures of before stand, with the trouble above them."""
    fake, clock = Fake({"h:1": scrape(0, {"truestep_driver_updates_total": 7})}, recorded()), ManualClock()
    run = watching(fake, clock)
    run.look()
    fake.answers.clear()
    clock.advance(3.0)
    silent = run.look()
    assert isinstance(silent, Screen) and silent.figures is not None and silent.figures.progress.updates == 7
    assert silent.trouble == "the driver has not answered for 3 s (refused); figures are of before"
    fake.record = recorded(address="h:2")
    fake.answers["h:2"] = scrape(9, {"truestep_driver_updates_total": 8}, lease="b")
    run.look()
    back = run.look()
    assert isinstance(back, Screen) and (back.trouble, back.address) == ("", "h:2")
    assert back.figures is not None and back.figures.progress.updates == 8


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (None, "the driver at h:1 has not answered for 30 s: the run has ended, or cannot be reached from here"),
        (recorded(status="died"), "r died: its driver is gone; go on with `truestep resume r`"),
    ],
)
def test_a_driver_that_stays_away_is_waited_for_and_then_given_up(record: Recorded | None, words: str) -> None:
    """A killed one may come back by its supervisor; nobody waits for ever."""
    fake, clock = Fake({"h:1": scrape(0, {})}, record), ManualClock()
    run = watching(fake, clock)
    run.look()
    fake.answers.clear()
    clock.advance(PATIENCE_S - 1)
    assert isinstance(run.look(), Screen)
    clock.advance(1)
    assert run.look() == Ended(words=words)


def test_following_ends_with_the_run() -> None:
    """The last thing that is told is the end."""
    fake = Fake({}, recorded(status="failed", verdict="no actor left"))
    assert list(watching(fake, ManualClock()).screens()) == [Ended(words="r failed: no actor left")]


# ── the record ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[RunRegistry]:
    with RunRegistry.open(tmp_path / REGISTRY_FILE) as registry:
        config = {"steps": 5000}
        registry.create_run(run="r", env="e", algo="ppo", seed=0, engine="ray", config=config, facts={}, out="o")
        yield registry


def test_the_record_tells_goal_events_and_where_the_driver_serves(registry: RunRegistry, tmp_path: Path) -> None:
    """The newest events only; those about watching itself are not among them."""
    registry.acquire("r", lease="one")
    record_serving(registry, "r", address="h:9", lease="one")
    for number in range(9):
        registry.record_event("r", "ACTOR_LOST", {"actor": number})
    registry.record_event("r", "VERDICT", {"verdict": "sync_bound", "words": "sync-bound: why"})
    run = RecordedRun("r", tmp_path)
    told = run.read()
    assert told is not None
    assert (told.status, told.total_steps, told.address) == ("running", 5000, "h:9")
    assert [each.data["actor"] for each in told.events] == [3, 4, 5, 6, 7, 8]
    assert told.finding == ("sync_bound", "sync-bound: why")
    registry.record_event("r", "RANK_LOST", {})
    again = run.read()
    assert again is not None and again.events[-1].kind == "RANK_LOST"
    assert [each.data.get("actor") for each in again.events] == [4, 5, 6, 7, 8, None]


def test_an_event_is_shown_once_however_often_the_record_is_read(registry: RunRegistry, tmp_path: Path) -> None:
    """Only what is new is read; what was read stays."""
    registry.record_event("r", "ACTOR_LOST", {"actor": 1})
    run = RecordedRun("r", tmp_path)
    kinds = []
    for _ in range(3):
        told = run.read()
        assert told is not None
        kinds.append([event.kind for event in told.events])
    assert kinds == [["ACTOR_LOST"]] * 3


def test_a_run_that_ended_or_is_not_here_is_no_error(registry: RunRegistry, tmp_path: Path) -> None:
    """Its status, with no address; or nothing at all."""
    registry.acquire("r", lease="one")
    told = RecordedRun("r", tmp_path).read()
    assert told is not None and (told.status, told.address) == ("running", "")
    registry.finish("r", "finished", verdict="done", wall_s=1.0)
    told = RecordedRun("r", tmp_path).read()
    assert told is not None and (told.status, told.verdict, told.address) == ("finished", "done", "")
    assert RecordedRun("q", tmp_path).read() is None
    assert RecordedRun("r", tmp_path / "elsewhere").read() is None


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────


def top(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["top", *words])
    return int(ended.value.code or 0)


def test_one_screen_by_address_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """From a machine that has no record of the run; rates need no second call."""
    with live_run() as run:
        metrics = DriverMetrics(run.registries["driver"])
        metrics.set_run(run="r", env="CartPole-v1", algo="ppo")
        metrics.set_progress(updates=3, env_steps=30, version=1, term=0, policy_lag=0, per_second=None)
        assert top("r", "--address", run.address, "--once", "--out", str(tmp_path)) == 0
    shown = capsys.readouterr().out
    assert "CartPole-v1, ppo" in shown and "30 steps, 0.0 steps/s" in shown
    assert "actor-0" in shown and "learner-0" in shown


def test_the_end_of_the_run_ends_the_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, registry: RunRegistry
) -> None:
    """Exit code 0, the verdict as the last line."""
    registry.acquire("r", lease="one")
    with live_run() as run:
        record_serving(registry, "r", address=run.address, lease="one")
        codes: list[int] = []
        looking = thread_of(lambda _: codes.append(top("r", "--out", str(tmp_path), "--interval", "0.05")), "looking")
        with looking:
            asked = run.registries["driver"]
            assert wait_until(lambda: asked.cpu_seconds > 0, clock=MonotonicClock(), seconds=60)
            registry.finish("r", "finished", verdict="all steps made", wall_s=1.0)
            run.close_driver()
    assert codes == [0]
    assert capsys.readouterr().out.splitlines()[-1] == "r finished: all steps made"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--address", "nonsense"], 2, "--address; got 'nonsense'"),
        (["--address", "h:1", "--interval", "0"], 2, "--interval; got 0.0; allowed: above 0, up to 60 seconds"),
    ],
)
def test_bad_words_are_refused(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Before anybody is asked."""
    assert top("r", *words) == code
    assert said in capsys.readouterr().err


def test_a_driver_that_never_answered_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """No screen of nothing: exit code 1 and what to look for."""
    assert top("r", "--address", closed_port()) == 1
    assert "does not answer" in capsys.readouterr().err
