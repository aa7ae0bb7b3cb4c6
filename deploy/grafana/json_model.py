"""Boards as Grafana's dashboard JSON, made with Grafana's own builders."""

from __future__ import annotations

import json
from itertools import count
from string import ascii_uppercase
from typing import TypeAlias

from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import prometheus, stat, statetimeline, table, timeseries
from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig,
    ReduceDataOptions,
    ScaleDistributionConfig,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common as model
from grafana_foundation_sdk.models import dashboard
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.grafana.boards.board import Board, Look, Panel
from deploy.prometheus.alerts import ALERTS, Alert, Severity
from deploy.prometheus.queries.query import Query, Unit

TAG = "truestep"
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${datasource}")
INFO = "truestep_driver_run_info"
COLOURS = {Severity.CRITICAL: "red", Severity.WARNING: "orange", Severity.INFO: "yellow"}
# Each narrows the next, so that panels need to select by run only: variable, label on the board, label in Prometheus,
# what it is chosen among.
VARIABLES = (
    ("env", "Environment", "env", INFO),
    ("model", "Algorithm", "algo", f'{INFO}{{env=~"$env"}}'),
    ("run", "Run", "run", f'{INFO}{{env=~"$env", algo=~"$model"}}'),
)

PanelBuilder: TypeAlias = timeseries.Panel | stat.Panel | statetimeline.Panel | table.Panel


def dashboard_json(board: Board) -> str:
    """The board as the text of a file that Grafana provisions."""
    builder = (
        build.Dashboard(board.title)
        .uid(board.uid)
        .description(board.description)
        .tags([TAG])
        .readonly()
        .refresh("5s")
        .time("now-30m", "now")
        .tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        .link(_other_boards())
        .with_variable(build.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for name, label, asked, among in VARIABLES:
        builder.with_variable(_variable(name, label, f"label_values({among}, {asked})"))
    numbers = count(1)
    for row in board.rows:
        builder.with_row(build.Row(row.title).id(next(numbers)))
        for panel in row.panels:
            builder.with_panel(_panel(panel).id(next(numbers)))
    return json.dumps(builder.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _variable(name: str, label: str, query: str) -> build.QueryVariable:
    everything = dashboard.VariableOption(text="All", value="$__all")
    return (
        build.QueryVariable(name)
        .label(label)
        .datasource(SOURCE)
        .query(query)
        .definition(query)
        .refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(dashboard.VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .current(everything)
    )


def _other_boards() -> build.DashboardLink:
    return (
        build.DashboardLink("truestep")
        .type(dashboard.DashboardLinkType.DASHBOARDS)
        .tags([TAG])
        .as_dropdown(False)
        .include_vars(True)
        .keep_time(True)
    )


def _panel(panel: Panel) -> PanelBuilder:
    builder = _looking(panel)
    builder.title(panel.title).description(panel.description).datasource(SOURCE)
    builder.span(panel.width).height(panel.height)
    for letter, query in zip(ascii_uppercase, panel.queries, strict=False):
        builder.with_target(_target(letter, query, panel.look))
    builder.links([_runbook(alert) for alert in _alerts_on(panel)])
    return builder


def _looking(panel: Panel) -> PanelBuilder:
    """The panel's kind, with what is particular to it."""
    match panel.look:
        case Look.LINES | Look.STACKED:
            return _lines(panel)
        case Look.FIGURE:
            last = ReduceDataOptions().calcs(["lastNotNull"])
            return stat.Panel().unit(panel.unit).thresholds(_thresholds(panel)).reduce_options(last)
        case Look.STATES:
            words = {str(value): dashboard.ValueMappingResult(text=word, index=value) for value, word in panel.names}
            return statetimeline.Panel().unit(panel.unit).mappings([dashboard.ValueMap(options=words)])
        case Look.TABLE:
            return _table(panel)


def _lines(panel: Panel) -> timeseries.Panel:
    legend = VizLegendOptions().show_legend(True).placement(model.LegendPlacement.BOTTOM).calcs(["lastNotNull"])
    tooltip = VizTooltipOptions().mode(model.TooltipDisplayMode.MULTI).sort(model.SortOrder.DESCENDING)
    builder = timeseries.Panel().unit(panel.unit).legend(legend).tooltip(tooltip).line_width(1)
    if _alerts_on(panel):
        style = GraphThresholdsStyleConfig().mode(model.GraphThresholdsStyleMode.LINE)
        builder.thresholds(_thresholds(panel)).thresholds_style(style)
    if panel.look is Look.STACKED:
        builder.stacking(StackingConfig().mode(model.StackingMode.NORMAL)).fill_opacity(30)
    if panel.unit in (Unit.SHARE, Unit.FLAG):
        builder.axis_soft_min(0).axis_soft_max(1)
    if panel.log_scale:
        builder.scale_distribution(ScaleDistributionConfig().type(model.ScaleDistribution.LOG).log(10))
    return builder


def _table(panel: Panel) -> table.Panel:
    builder = table.Panel().unit(panel.unit)
    hidden = {"excludeByName": {"Time": True, "Value": True}}
    builder.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=hidden))
    if panel.row_link:
        builder.data_links([build.DashboardLink("Runbook").url(panel.row_link).target_blank(True)])
    return builder


def _target(letter: str, query: Query, look: Look) -> prometheus.Dataquery:
    target = prometheus.Dataquery().ref_id(letter).expr(query.on_board()).legend_format(query.legend)
    if look is Look.TABLE:
        return target.instant().format(PromQueryFormat.TABLE)
    return target.range()


def _alerts_on(panel: Panel) -> tuple[Alert, ...]:
    """Alerts that watch what the panel draws."""
    return tuple(alert for alert in ALERTS if alert.query in panel.queries)


def _thresholds(panel: Panel) -> build.ThresholdsConfig:
    """Green, and from each alert's limit on its colour."""
    alerts = sorted(_alerts_on(panel), key=lambda alert: alert.above)
    limits = [dashboard.Threshold(value=alert.above, color=COLOURS[alert.severity]) for alert in alerts]
    green = dashboard.Threshold(value=None, color="green")
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps([green, *limits])


def _runbook(alert: Alert) -> build.DashboardLink:
    link = build.DashboardLink(f"Runbook: {alert.name}").type(dashboard.DashboardLinkType.LINK)
    return link.url(alert.runbook_url).target_blank(True)
