"""Is the run well?"""

from __future__ import annotations

from deploy.grafana.boards.board import FULL_WIDTH, Board, Look, Panel, Row
from deploy.prometheus.alerts import RUNBOOKS_URL
from deploy.prometheus.queries import overview

BOARD = Board(
    uid="truestep-overview",
    title="truestep / Overview",
    description="Is the run well: how fast, how good, what holds it up, who is there.",
    rows=(
        Row(
            title="Now",
            panels=(
                Panel(title="Steps", queries=(overview.STEPS,), look=Look.FIGURE, width=6, height=4),
                Panel(title="Steps per second", queries=(overview.STEPS_RATE,), look=Look.FIGURE, width=6, height=4),
                Panel(title="Updates", queries=(overview.UPDATES,), look=Look.FIGURE, width=6, height=4),
                Panel(title="Since the update", queries=(overview.COMMIT_AGE,), look=Look.FIGURE, width=6, height=4),
                Panel(title="Runs", queries=(overview.RUNS,), look=Look.TABLE, width=12, height=6),
                Panel(
                    title="Firing alerts",
                    queries=(overview.FIRING,),
                    look=Look.TABLE,
                    width=12,
                    height=6,
                    row_link=f"{RUNBOOKS_URL}/${{__data.fields.alertname}}.md",
                ),
            ),
        ),
        Row(
            title="How good",
            panels=(
                Panel(title="Return", queries=(overview.RETURN_MEAN, overview.EVALUATION_RETURN), width=12),
                Panel(title="Return by environment and algorithm", queries=(overview.RETURN_BY_MODEL,), width=12),
            ),
        ),
        Row(
            title="How fast",
            panels=(
                Panel(title="Environment steps", queries=(overview.STEPS_RATE,)),
                Panel(title="Updates committed", queries=(overview.UPDATES_RATE,)),
                Panel(title="Age of the newest update", queries=(overview.COMMIT_AGE,)),
            ),
        ),
        Row(
            title="What holds it up",
            panels=(
                Panel(
                    title="Verdict",
                    queries=(overview.VERDICT,),
                    look=Look.STATES,
                    width=FULL_WIDTH,
                    names=((1, "in force"),),
                ),
                Panel(title="Time under each verdict", queries=(overview.VERDICT_SHARE,), look=Look.STACKED),
                Panel(title="Held up by a fault", queries=(overview.STALL_FAULTS,)),
                Panel(title="Held up by its slower half", queries=(overview.STALL_BALANCE,)),
            ),
        ),
        Row(
            title="Who is there",
            panels=(
                Panel(title="Actors", queries=(overview.ACTORS_BY_STATE,), look=Look.STACKED, width=6),
                Panel(title="Missing actors", queries=(overview.ACTORS_MISSING,), width=6),
                Panel(title="Learner ranks", queries=(overview.RANKS_BY_STATE,), look=Look.STACKED, width=6),
                Panel(title="Processes that answer", queries=(overview.TARGETS_UP,), width=6),
            ),
        ),
    ),
)
