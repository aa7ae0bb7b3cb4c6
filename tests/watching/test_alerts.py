"""The alerts: the file is what the code makes, each has unit tests and a page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.grafana.boards import BOARDS
from deploy.prometheus.__main__ import DOCUMENT, renewed
from deploy.prometheus.alerts import ALERTS, Alert, Severity
from deploy.prometheus.queries import Query, Unit
from deploy.prometheus.rules import board_of, rule_file
from tests.watching.prometheus_server import needs_promtool

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "deploy" / "prometheus"
RUNBOOKS = ROOT / "deploy" / "runbooks"
UNIT_TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
PARTS = ("## What it means", "## Look at", "## Do")
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=[alert.topic for alert in ALERTS])


def promtool(*words: str | Path) -> str:
    done = subprocess.run(["promtool", *map(str, words)], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def cases(alert: Alert) -> list[dict[str, Any]]:
    """What its unit tests expect, moment by moment."""
    tests = [test for path in UNIT_TESTS for test in yaml.safe_load(path.read_text())["tests"]]
    return [case for test in tests for case in test["alert_rule_test"] if case["alertname"] == alert.name]


def test_the_file_is_what_the_code_makes() -> None:
    """`python -m deploy.prometheus` was run after the last change."""
    assert (PROMETHEUS / "alerts.yaml").read_text() == rule_file()


def test_the_table_is_todays() -> None:
    """docs/watching.md, by the same command."""
    document = DOCUMENT.read_text()
    assert renewed(document) == document
    assert all(f"[{alert.name}]" in document for alert in ALERTS)


@needs_promtool
def test_prometheus_takes_configuration_and_rules() -> None:
    """`promtool check config` and `check rules`."""
    assert "SUCCESS" in promtool("check", "config", PROMETHEUS / "prometheus.yml")
    assert f"SUCCESS: {len(ALERTS)} rules found" in promtool("check", "rules", PROMETHEUS / "alerts.yaml")


@needs_promtool
@pytest.mark.parametrize("path", UNIT_TESTS, ids=[path.stem for path in UNIT_TESTS])
def test_alerts_fire_when_they_should_and_only_then(path: Path) -> None:
    """`promtool test rules`: series written by hand, texts and figures worked out by hand."""
    assert "SUCCESS" in promtool("test", "rules", path)


@each_alert
def test_an_alert_is_tested_firing_and_silent(alert: Alert) -> None:
    """Both at one moment at least, and in a test that has a second run or process in which nothing is wrong."""
    expected = [case["exp_alerts"] for case in cases(alert)]
    assert [] in expected
    assert any(alerts for alerts in expected)


@each_alert
def test_an_alert_says_whose_run_it_is_and_how_bad(alert: Alert) -> None:
    """The run in every text, and the figure wherever it is one that says something."""
    assert "{{ $labels.run }}" in alert.description
    assert "{{ $labels.run }}" in alert.summary or "{{ $labels.instance }}" in alert.summary
    if alert.query.unit is not Unit.FLAG:
        assert "$value" in alert.summary + alert.description


@each_alert
def test_an_alert_has_a_page(alert: Alert) -> None:
    """In three parts, with at least one command or panel to look at."""
    page = (RUNBOOKS / f"{alert.name}.md").read_text()
    assert page.startswith(f"# {alert.name}\n")
    assert [line for line in page.splitlines() if line.startswith("#")][1:] == list(PARTS)
    assert "`" in page


def test_there_is_no_page_without_an_alert() -> None:
    """Nor a link between pages that leads nowhere."""
    assert {path.stem for path in RUNBOOKS.glob("*.md")} == {alert.name for alert in ALERTS}
    for path in RUNBOOKS.glob("*.md"):
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
            assert (RUNBOOKS / target).exists(), f"{path.name}: {target}"


def test_panels_that_pages_name_exist() -> None:
    """As **Board / Panel**."""
    titles = {(board.title.partition(" / ")[2], panel.title) for board in BOARDS for panel in board.panels}
    for path in RUNBOOKS.glob("*.md"):
        for board, panel in re.findall(r"\*\*([^*/]+) / ([^*]+)\*\*", path.read_text()):
            assert (board, panel) in titles, f"{path.name}: {board} / {panel}"


def test_an_alert_on_what_no_board_draws_is_refused() -> None:
    """Whoever is woken up has to be able to see why."""
    with pytest.raises(LookupError, match="no board draws"):
        board_of(Query(promql="x{$run}", unit=Unit.NUMBER, help="x."))


def test_the_worst_are_those_that_put_the_result_in_doubt() -> None:
    """A standstill, a state that is not what it should be, a crash that would cost something."""
    critical = {alert.topic for alert in ALERTS if alert.severity is Severity.CRITICAL}
    assert critical == {"NoProgress", "DataDamaged", "SyncMismatch", "Rollback", "CheckpointFailing", "GpuMisplaced"}
