"""The page of a run, and of two: what it tells, that it holds together, and that it fetches nothing."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from common.errors import EXIT_BAD_INPUT, EXIT_FINISHED, ConfigError, OutputError, RunNotFoundError
from common.runs import RunRegistry
from deploy import cli
from deploy.reporting.page import write_report
from tests.deploy.reporting.document import Document
from tests.deploy.reporting.runs import Made, evaluation, update
from tests.deploy.test_sync_tally import mismatch, row

SECTIONS = [
    *("Key figures", "Returns", "Learning", "Throughput and time", "Lag and flow"),
    *("Integrity", "Timeline", "Environment", "Make it again"),
]


@pytest.fixture
def made(tmp_path: Path) -> Iterator[Made]:
    made = Made.under(tmp_path)
    yield made
    made.registry.close()


def small(made: Made, run: str = "r", **changes: Any) -> str:
    """Ten updates, two evaluations, one lost actor, finished."""
    made.run(run, updates=[update(number, run=run, **changes) for number in range(1, 11)])
    made.event(run, 3.0, "ACTOR_LOST", actor=1, cause="killed", detail="a long trace")
    made.registry.record_evaluation(evaluation(5, 10.0, 30.0, run=run))
    made.registry.record_evaluation(evaluation(10, 40.0, 60.0, run=run))
    made.checkpoint(run, 10)
    made.finish(run)
    return run


def page(made: Made, a: str = "r", b: str = "") -> Document:
    written = write_report(a, b, out=made.out)
    text = written.path.read_text()
    assert written.num_bytes == len(text.encode())
    document = Document(text)
    assert_holds_together(document)
    return document


def assert_holds_together(document: Document) -> None:
    """Nothing is fetched, links within lead somewhere, headings are in order, every picture has words."""
    fetched = [value for name in ("src", "href", "data", "poster", "action") for value in document.attributes(name)]
    assert all(value.startswith("#") or value == "data:," for value in fetched)
    anchors = set(document.attributes("id"))
    assert {value.removeprefix("#") for value in fetched if value.startswith("#")} <= anchors
    assert len(anchors) == len(document.attributes("id"))
    levels = [level for level, _ in document.headings]
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for svg in document.of("svg"):
        assert svg.get("aria-hidden") == "true" or svg.get("aria-label"), svg
    assert "nan" not in " ".join(document.attributes("d") + document.attributes("x") + document.attributes("y"))


# ── one run ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_page_tells_what_the_run_did(made: Made) -> None:
    """Figures worked out by hand from ten updates of 100 steps and a second each."""
    document = page(made, small(made))
    assert [words for level, words in document.headings if level == 2] == SECTIONS
    assert document.headings[0] == (1, "r")
    for words in (
        *("finished", "PPO on CartPole-v1, seed 0, engine inline", "50 ± 10", "2 episodes, after update 10"),
        *("1,000", "10 of 10", "1 process lost, 0 syncs voided"),
        "1,100 transitions produced = 1,000 trained + 0 dropped + 100 in flight.",
        "80 gradient steps were verified; ranks disagreed 0 times.",
    ):
        assert words in document.text, words
    assert document.row("Gradient steps verified") == ["80"]
    assert document.row("doing a sampled step again") == ["0.60 s, 10.0%"]
    assert document.row("update 5")[1:] == ["2", "20", "10", "10", "30"]
    assert document.row("Host") == ["somewhere"]


def test_throughput_leaves_out_the_time_of_starting(made: Made) -> None:
    """1,000 steps in 10 s, of which 0.4 s before the first update began."""
    assert "104 steps per second, after 0 s of starting" in page(made, small(made)).text


def test_returns_and_evaluations_are_drawn_with_their_spread(made: Made) -> None:
    """One line with two bands, one marker with a bar for each evaluation, in both sizes of the chart."""
    text = write_report(small(made), out=made.out).path.read_text()
    wide = re.search(r'<div class="wide">(.*?)</div>', text, re.DOTALL)
    assert wide is not None
    chart = Document(wide[1])
    assert [len(chart.of(*of)) for of in (("path", "line"), ("path", "band"), ("path", "range"))] == [1, 1, 1]
    assert len(chart.of("circle", "mark")) == len(chart.of("line", "bar")) == 2
    label = chart.of("svg")[0]["aria-label"] or ""
    assert "training: from 20 to 20" in label and "greedy: from 20 to 50" in label


def test_events_are_told_and_their_long_material_is_not(made: Made) -> None:
    """With seconds of driving; a traceback stays in the registry."""
    document = page(made, small(made))
    (lost,) = [row for row in document.rows if "ACTOR_LOST" in row]
    assert lost[0] == "3 s" and lost[3] == "actor=1 cause=killed".replace(" ", "  ")
    assert "a long trace" not in document.text


def test_statistics_that_nobody_knows_have_a_curve_all_the_same(made: Made) -> None:
    """By their name: algorithms to come need no change here."""
    document = page(made, small(made, td_error=0.25))
    assert (3, "Td error") in document.headings


def test_whatever_a_run_holds_is_escaped(made: Made) -> None:
    """Environment, verdict, facts of events, host and names of statistics."""
    evil = '<script>alert("x")</script>'
    run = made.run(
        env=evil, config={"learner": {}, "policy_lag": 0, evil: evil}, facts={"system": {"host": evil}},
        updates=[update(1, **{evil: 1.0}), update(2)],
    )  # fmt: skip
    made.event(run, 1.0, evil, cause=evil)
    made.event(run, 1.0, "VERDICT", verdict=evil)
    made.registry.finish(run, "failed", verdict=evil, wall_s=3.0)
    text = write_report(run, out=made.out).path.read_text()
    assert text.count("<script>") == 1 and "alert(&#34;x&#34;)" in text
    assert_holds_together(Document(text))


def test_a_page_names_no_address_and_forbids_itself_to_fetch(made: Made) -> None:
    """No http in it, no import or url() of its style sheet but those of its own patterns, and a policy."""
    text = write_report(small(made), out=made.out).path.read_text()
    assert "http://" not in text and "https://" not in text and "@import" not in text
    assert set(re.findall(r"url\((.)", text)) == {"#"}
    policy = next(each["content"] for each in Document(text).of("meta") if each.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


# ── runs that did not go well ────────────────────────────────────────────────────────────────────────────────────


def test_a_run_that_has_done_nothing_yet_has_a_page(made: Made) -> None:
    """No update, no evaluation; it is under way."""
    document = page(made, made.run())
    assert "under way, at update 0" in document.text
    assert "nothing on record" in document.text and "no evaluation on record" in document.text


def test_one_update_is_enough(made: Made) -> None:
    """A dot instead of a line."""
    document = page(made, made.run(updates=[update(1)]))
    assert document.of("circle", "dot")


def test_losses_that_are_not_finite_are_counted_and_marked(made: Made) -> None:
    """By name, and the charts have their crosses."""
    rows = [update(number, value=math.nan if number > 8 else 1.0, policy=math.inf) for number in range(1, 11)]
    document = page(made, made.run(updates=rows))
    assert "not finite, of 10 updates: Policy loss 10, Value loss 2" in document.text
    assert len(document.of("path", "nonfinite")) == 12
    assert "no finite value on record" in document.text


def test_a_run_that_was_rolled_back_and_resumed_tells_of_it(made: Made) -> None:
    """What was undone is gone from the curves; what happened stays on the timeline."""
    run = made.run(updates=[update(number) for number in range(1, 11)])
    made.event(run, 2.0, *mismatch(10, "digest")[:1], **mismatch(10, "digest")[1])
    made.clock.advance(1.0)
    made.registry.roll_back(run, 6, term=1, reason="ranks disagree")
    made.registry.record_updates([update(number, seconds=number + 6.0) for number in (7, 8, 9)])
    made.registry.truncate_after(run, 8)
    made.drive(run, 16.0)
    document = page(made, run)
    assert "ranks disagreed 1 time." in document.text and "1 rollback" in document.text
    assert "resumed 1 time" in document.text and document.row("Term of the learner") == ["1"]
    assert any("driving 2, running" in text for text in document.words)
    assert document.row("Updates with a digest") == ["8"]


def test_accounts_that_do_not_add_up_are_said_to_be_wrong(made: Made) -> None:
    """Never smoothed over: dropped ones were counted in the accounts at the end, and are missing here."""
    run = made.run(updates=[update(1)])
    made.event(run, 1.0, "ACCOUNTS", update=1, produced=100, trained=150)
    document = page(made, run)
    assert "this does not add up" in document.text
    assert [each["class"] for each in document.of("li", "no")] == ["no"]


def test_a_run_of_an_older_truestep_has_a_page(made: Made) -> None:
    """No times, no spread, no accounts, a configuration that is not taken any more."""
    run = made.run(config={"learner": {}, "policy_lag": 1}, facts={}, updates=[])
    made.registry.record_updates([row(number) for number in (1, 2, 3)])
    made.registry.record_evaluation(evaluation(2, 1.0))
    document = page(made, run)
    assert "not on record" in document.text and "No command trains it anew" in document.text


def test_verdicts_of_stall_attribution_are_bands_and_seconds(made: Made) -> None:
    """What held the run up, for how long."""
    run = made.run(updates=[update(number) for number in range(1, 11)])
    made.event(run, 2.0, "VERDICT", verdict="healthy", before="")
    made.event(run, 4.0, "VERDICT", verdict="slow_actor", before="healthy", words="actor 1 takes twice as long")
    document = page(made, run)
    assert document.row("healthy") == ["4 s", ""]
    assert document.row("slow actor") == ["4 s", "actor 1 takes twice as long"]
    assert len(document.of("rect", "fine")) >= 2


def test_a_thousand_events_make_no_endless_page(made: Made) -> None:
    """The first and the last are told, and how many there are of each kind."""
    run = made.run(updates=[update(1)])
    for number in range(500):
        made.event(run, 0.01, "FRAGMENT_REFUSED", sequence=number)
    document = page(made, run)
    assert "FRAGMENT_REFUSED 500" in document.text and "sequence=499" in document.text
    assert len([row for row in document.rows if "FRAGMENT_REFUSED" in row]) == 119


@pytest.mark.slow
def test_a_page_of_many_updates_is_below_a_megabyte(made: Made) -> None:
    """Two of them, one over the other."""
    for run in ("r", "s"):
        rows = [update(number, run=run, value=math.sin(number)) for number in range(1, 20_001)]
        made.run(run, updates=rows)
    assert write_report("r", "s", out=made.out).num_bytes < 1_000_000


# ── two runs ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_two_runs_lie_over_each_other(made: Made) -> None:
    """Letters, both values of every figure, and what differs between them."""
    small(made)
    small(made, "s", value=9.0)
    document = page(made, "r", "s")
    assert document.headings[0] == (1, "r and s")
    assert document.row("Run") == ["r", "s"]
    assert "A and B have the same parameters, bit for bit, through update 10." in document.text
    labels = [svg["aria-label"] or "" for svg in document.of("svg", "chart")]
    (value,) = [label for label in labels if label.startswith("Value loss")]
    assert "A, mean of the update: from 4 to 4" in value and "B, mean of the update: from 9 to 9" in value
    assert len([words for _, words in document.headings if words.startswith(("A: ", "B: "))]) >= 6


def test_two_runs_with_other_settings_say_so(made: Made) -> None:
    """Keys of the configuration and facts of the machine, side by side."""
    made.run("r", facts={"system": {"machine": "x86"}}, updates=[update(1)])
    made.run("s", facts={"system": {"machine": "arm"}}, changed={"ppo": {"clip": 0.3}}, updates=[])
    document = page(made, "r", "s")
    assert ["ppo.clip", "0.2", "0.3"] in document.rows
    assert ["system.machine", '"x86"', '"arm"'] in document.rows
    assert "A and B share no update" in document.text


def test_runs_of_two_directories_may_have_one_name(made: Made, tmp_path: Path) -> None:
    """The other directory is named; one run twice is refused."""
    small(made)
    other = Made.under(tmp_path / "other")
    small(other)
    other.registry.close()
    assert write_report("r", "r", out=made.out, out_b=other.out).runs == ("r", "r")
    with pytest.raises(ConfigError, match="r twice"):
        write_report("r", "r", out=made.out)


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_command_says_where_the_page_is(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """In the run's directory if nothing else is asked for; as one JSON object too."""
    small(made)
    assert cli.run_command(cli.Report(run="r", out=made.out)) == EXIT_FINISHED
    assert capsys.readouterr().out.startswith(f"report       {made.out / 'r' / 'report.html'} (")
    asked = made.out / "new" / "page.html"
    assert cli.run_command(cli.Report(run="r", out=made.out, output=asked, json=True)) == EXIT_FINISHED
    told = json.loads(capsys.readouterr().out)
    assert told == {"path": str(asked), "runs": ["r"], "bytes": asked.stat().st_size}


def test_an_unknown_run_is_named(made: Made, capsys: pytest.CaptureFixture[str]) -> None:
    """Either one, with exit code 2."""
    small(made)
    with pytest.raises(RunNotFoundError, match="'s'"):
        write_report("r", "s", out=made.out)
    assert cli.run_command(cli.Report(run="s", out=made.out)) == EXIT_BAD_INPUT
    assert "no run of that name" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_leaves_the_old_one(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole, and no half of a new one beside it; the error says which file and what to do."""
    small(made)
    path = write_report("r", out=made.out).path
    path.write_text("old")

    def full(self: Path, data: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(OutputError, match=r"report\.html \(No space left on device\).*--output"):
        write_report("r", out=made.out)
    assert path.read_text() == "old"
    assert [each.name for each in path.parent.iterdir()] == ["report.html"]


def test_a_directory_in_the_place_of_the_page_is_an_error(made: Made) -> None:
    """Named."""
    small(made)
    (made.out / "taken").mkdir()
    with pytest.raises(OutputError, match="taken"):
        write_report("r", out=made.out, output=made.out / "taken")


def test_a_run_that_is_being_driven_is_only_read(made: Made) -> None:
    """Its registry opens for reading; its driver goes on writing."""
    run = made.run(updates=[update(1)])
    before = (made.registry.events(run), made.registry.owner(run))
    write_report(run, out=made.out)
    assert (made.registry.events(run), made.registry.owner(run)) == before
    made.registry.record_updates([update(2)])
    with RunRegistry.open(made.out / "runs.sqlite", read_only=True) as reader:
        assert reader.run(run).updates == 2
