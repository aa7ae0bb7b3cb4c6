"""The boards, and the files that Grafana is given."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from deploy.grafana.__main__ import DASHBOARDS
from deploy.grafana.boards import BOARDS
from deploy.grafana.boards.board import FULL_WIDTH, Board, Look
from deploy.grafana.json_model import dashboard_json
from deploy.prometheus.alerts import ALERTS
from deploy.prometheus.queries import CATALOGUE, When

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "deploy" / "grafana"
PANELS = [
    pytest.param(board, number, id=f"{board.uid}-{number}") for board in BOARDS for number in range(len(board.panels))
]
each_board = pytest.mark.parametrize("board", BOARDS, ids=[board.uid for board in BOARDS])


def file_of(board: Board) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((DASHBOARDS / f"{board.uid}.json").read_text())
    return parsed


def panels_of(board: Board) -> list[dict[str, Any]]:
    """Without headings."""
    return [panel for panel in file_of(board)["panels"] if panel["type"] != "row"]


# ── the boards ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_query_is_drawn() -> None:
    """What nobody sees would not be kept right."""
    drawn = {query for board in BOARDS for panel in board.panels for query in panel.queries}
    assert [name for name, query in CATALOGUE.items() if query not in drawn] == []


@each_board
def test_no_two_panels_of_a_board_bear_one_title(board: Board) -> None:
    """And rows fill the width or leave it to the next line."""
    titles = [panel.title for panel in board.panels]
    assert len(titles) == len(set(titles))
    assert all(panel.width <= FULL_WIDTH for panel in board.panels)


@pytest.mark.parametrize(("board", "number"), PANELS)
def test_a_panel_says_what_it_shows_in_one_unit(board: Board, number: int) -> None:
    """A description, with the reason why it may be empty; states have words."""
    panel = board.panels[number]
    assert panel.unit.value and panel.description.endswith(".")
    whens = {query.when for query in panel.queries} - {When.RUNNING}
    assert all(when.value in panel.description for when in whens)
    assert (panel.look is Look.STATES) == bool(panel.names)
    assert (panel.look is Look.TABLE) <= (len(panel.queries) == 1)


# ── the files ────────────────────────────────────────────────────────────────────────────────────────────────────


@each_board
def test_the_file_is_what_the_code_makes(board: Board) -> None:
    """`python -m deploy.grafana` was run after the last change."""
    assert (DASHBOARDS / f"{board.uid}.json").read_text() == dashboard_json(board)


def test_there_is_no_file_without_a_board() -> None:
    """One that was renamed would be provisioned for ever."""
    assert {path.stem for path in DASHBOARDS.glob("*.json")} == {board.uid for board in BOARDS}


@each_board
def test_panels_have_description_unit_and_source(board: Board) -> None:
    """In the JSON, where Grafana looks."""
    for panel in panels_of(board):
        assert panel["description"] and panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert [target["expr"] for target in panel["targets"]]


@each_board
def test_panels_are_laid_out_without_overlap(board: Board) -> None:
    """Within 24 columns; each id once."""
    everything = file_of(board)["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: set[tuple[int, int]] = set()
    for panel in everything:
        place = panel["gridPos"]
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < FULL_WIDTH
        taken |= cells


@each_board
def test_variables_narrow_one_another(board: Board) -> None:
    """run is chosen among those of the environments and algorithms chosen, and panels select by run."""
    variables = {variable["name"]: variable for variable in file_of(board)["templating"]["list"]}
    assert list(variables) == ["datasource", "env", "model", "run"]
    assert variables["env"]["query"] == "label_values(truestep_driver_run_info, env)"
    assert variables["model"]["query"] == 'label_values(truestep_driver_run_info{env=~"$env"}, algo)'
    assert variables["run"]["query"] == 'label_values(truestep_driver_run_info{env=~"$env", algo=~"$model"}, run)'
    assert all(variables[name]["multi"] and variables[name]["includeAll"] for name in ("env", "model", "run"))
    assert all('run=~"$run"' in target["expr"] for panel in panels_of(board) for target in panel["targets"])


def test_what_an_alert_watches_is_drawn_with_its_limit_and_its_runbook() -> None:
    """Alert, panel and page lead to one another."""
    for alert in ALERTS:
        expression = alert.query.on_board()
        panels = [
            panel
            for board in BOARDS
            for panel in panels_of(board)
            if expression in [target["expr"] for target in panel["targets"]]
        ]
        assert panels, alert.name
        for panel in panels:
            assert f"{alert.runbook_url}" in [link["url"] for link in panel["links"]]
            steps = panel["fieldConfig"]["defaults"]["thresholds"]["steps"]
            assert alert.above in [step["value"] for step in steps], (alert.name, panel["title"])


@each_board
def test_links_lead_to_the_other_boards_and_to_pages(board: Board) -> None:
    """Boards by their tag; pages are files of deploy/runbooks."""
    file = file_of(board)
    (link,) = file["links"]
    assert (link["type"], link["tags"], link["includeVars"]) == ("dashboards", ["truestep"], True)
    assert file["tags"] == ["truestep"]
    for panel in panels_of(board):
        for link in panel["links"]:
            assert (ROOT / "deploy" / "runbooks" / Path(link["url"]).name).is_file(), link["url"]


# ── Grafana's schemas ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def schemas() -> Path:
    """Grafana's JSON schemas; none are shipped with truestep."""
    if not os.environ.get("TRUESTEP_SCHEMAS"):
        pytest.skip(
            "TRUESTEP_SCHEMAS is not set: a directory with the JSON schemas of grafana-foundation-sdk in grafana/"
        )
    directory = Path(os.environ["TRUESTEP_SCHEMAS"]) / "grafana"
    assert directory.is_dir(), f"TRUESTEP_SCHEMAS has no grafana/: {directory}"
    return directory


def faults(schemas: Path, name: str, value: Any, definition: str = "") -> Iterator[str]:
    """What a schema, or one definition of it, finds wrong."""
    schema = json.loads((schemas / f"{name}.jsonschema.json").read_text())
    if definition:
        schema["$ref"] = f"#/definitions/{definition}"
    validator = jsonschema.validators.validator_for(schema)(schema)
    for error in validator.iter_errors(value):
        yield f"{name} {'.'.join(map(str, error.absolute_path))}: {error.message[:200]}"


@each_board
def test_the_file_satisfies_grafanas_schemas(board: Board, schemas: Path) -> None:
    """The dashboard, each panel's options and fields, each target."""
    file = file_of(board)
    found = list(faults(schemas, "dashboard", file))
    for panel in panels_of(board):
        kind = panel["type"].replace("-", "")
        found += faults(schemas, kind, panel["options"], "Options")
        if custom := panel["fieldConfig"]["defaults"].get("custom"):
            found += faults(schemas, kind, custom, "FieldConfig")
        for target in panel["targets"]:
            found += faults(schemas, "prometheus", target)
    assert found == []


def test_a_fault_is_seen(schemas: Path) -> None:
    """Else a schema that allows everything would pass for a check."""
    file = file_of(BOARDS[0])
    file["refresh"] = 5
    assert list(faults(schemas, "dashboard", file)) != []


# ── provisioning and containers ──────────────────────────────────────────────────────────────────────────────────


def test_grafana_is_told_where_boards_and_prometheus_are() -> None:
    """Paths and addresses agree between provisioning, compose and the configuration of Prometheus."""
    (provider,) = yaml.safe_load((GRAFANA / "provisioning/dashboards/truestep.yaml").read_text())["providers"]
    (source,) = yaml.safe_load((GRAFANA / "provisioning/datasources/prometheus.yaml").read_text())["datasources"]
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    services = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text())["services"]
    mounts = dict(volume.split(":")[:2] for volume in services["grafana"]["volumes"])
    assert mounts["../grafana/dashboards"] == provider["options"]["path"]
    assert mounts["../grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["../runbooks"] == "/usr/share/grafana" + ALERTS[0].runbook_url.rpartition("/")[0]
    listening = next(word for word in services["prometheus"]["command"] if "listen-address" in word)
    assert source["url"].removeprefix("http://") == listening.partition("=")[2]
    assert config["scrape_configs"][1]["static_configs"][0]["targets"] == [listening.partition("=")[2]]
    assert source["jsonData"]["timeInterval"] == config["global"]["scrape_interval"]


def test_what_compose_mounts_exists() -> None:
    """Seen from its own file; and home is one of the boards."""
    compose = ROOT / "deploy/docker/compose.yaml"
    services = yaml.safe_load(compose.read_text())["services"]
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (compose.parent / source).is_dir(), source
    home = Path(services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert (DASHBOARDS / home.name).is_file()


def test_images_are_pinned_and_nothing_is_opened_to_a_network() -> None:
    """A tag, no registry's name, the loopback only."""
    services = yaml.safe_load((ROOT / "deploy/docker/compose.yaml").read_text())["services"]
    for service in services.values():
        assert re.fullmatch(r"([\w-]+/)?[\w-]+:v?\d+\.\d+\.\d+(-\w+)?", service["image"])
        assert service["network_mode"] == "host" and "ports" not in service
    assert "--web.listen-address=127.0.0.1:9090" in services["prometheus"]["command"]
    assert services["grafana"]["environment"]["GF_SERVER_HTTP_ADDR"] == "127.0.0.1"


def test_prometheus_asks_the_driver_often_enough() -> None:
    """Every 5 s, so that processes that have gone do not linger."""
    (truestep, _) = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())["scrape_configs"]
    (discovery,) = truestep["http_sd_configs"]
    assert discovery["url"].endswith("/targets") and discovery["refresh_interval"] == "5s"
