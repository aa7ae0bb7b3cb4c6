"""The alerts as the rule file that Prometheus loads, and as a table for people."""

from __future__ import annotations

from typing import Any

import yaml

from deploy.grafana.boards import BOARDS
from deploy.grafana.boards.board import Board
from deploy.prometheus.alerts import ALERTS, Alert
from deploy.prometheus.queries.query import Query

HEAD = """\
# The alerts of truestep. Made from deploy/prometheus/alerts.py by `python -m deploy.prometheus`: edit there.
# dashboard_url and runbook_url are paths of the Grafana of deploy/docker/compose.yaml; pages: deploy/runbooks/.
"""


def rule_file() -> str:
    """The text of deploy/prometheus/alerts.yaml."""
    return HEAD + yaml_text({"groups": groups()})


def groups() -> list[dict[str, Any]]:
    """The alerts as Prometheus' groups of rules; `deploy/kubernetes` wraps the same ones."""
    return [{"name": "truestep", "rules": [_rule(alert) for alert in ALERTS]}]


def yaml_text(document: dict[str, Any]) -> str:
    """As files are written here: keys in their order, lines of at most 100 columns where that can be."""
    return yaml.safe_dump(document, sort_keys=False, width=100, allow_unicode=True)


def markdown_table(runbooks: str) -> str:
    """The alerts as a Markdown table; `runbooks` is where their pages are, as seen from the document."""
    lines = ["| alert | severity | fires when | for | board |", "| --- | --- | --- | --- | --- |"]
    for alert in ALERTS:
        page = f"[{alert.name}]({runbooks}/{alert.name}.md)"
        expression = alert.expression.replace("|", "\\|")
        lines.append(f"| {page} | {alert.severity} | `{expression}` | {alert.hold} | {board_of(alert.query).title} |")
    return "\n".join(lines)


def board_of(query: Query) -> Board:
    """The first board that draws `query`.

    Raises:
        LookupError: none does; whoever is alerted has to be able to see what was watched.
    """
    for board in BOARDS:
        if any(query in panel.queries for panel in board.panels):
            return board
    raise LookupError(f"no board draws the query {query.promql!r}")


def _rule(alert: Alert) -> dict[str, Any]:
    board = board_of(alert.query)
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.hold,
        "labels": {"severity": alert.severity.value},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "dashboard_url": f"/d/{board.uid}?var-run={{{{ $labels.run | urlquery }}}}",
            "runbook_url": alert.runbook_url,
        },
    }
