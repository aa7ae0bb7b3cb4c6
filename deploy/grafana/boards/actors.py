"""What do actors do with their time?"""

from __future__ import annotations

from deploy.grafana.boards.board import Board, Look, Panel, Row
from deploy.prometheus.queries import actors, overview, stability

BOARD = Board(
    uid="truestep-actors",
    title="truestep / Actors",
    description="What actors do with their time, which of them is slow, and what their episodes are like.",
    rows=(
        Row(
            title="Collecting",
            panels=(
                Panel(title="Steps by actor", queries=(actors.STEPS_RATE,)),
                Panel(title="Time for a fragment by actor", queries=(actors.COLLECT_MEAN,)),
                Panel(title="Time for a fragment, the slowest", queries=(actors.COLLECT_P99,)),
                Panel(title="Busy", queries=(actors.BUSY_SHARE,)),
                Panel(title="Where collecting goes", queries=(actors.ENVIRONMENT_SHARE, actors.POLICY_SHARE)),
                Panel(
                    title="One step of all lanes", queries=(actors.ENV_STEP_P50, actors.ENV_STEP_P99), log_scale=True
                ),
                Panel(title="Fragments", queries=(actors.FRAGMENTS_RATE,)),
                Panel(title="Bytes of fragments", queries=(actors.FRAGMENT_BYTES,)),
                Panel(title="Versions behind", queries=(actors.VERSIONS_BEHIND,)),
            ),
        ),
        Row(
            title="Episodes",
            panels=(
                Panel(
                    title="Spread of returns",
                    queries=(actors.RETURN_P10, actors.RETURN_P50, actors.RETURN_P90),
                    width=12,
                ),
                Panel(title="Length", queries=(actors.EPISODE_LENGTH,), width=12),
                Panel(title="Episodes", queries=(actors.EPISODES_RATE,)),
                Panel(title="Duration", queries=(actors.EPISODE_P90,)),
                Panel(title="Time of an evaluation", queries=(actors.EVALUATION_MEAN,)),
            ),
        ),
        Row(
            title="Life",
            panels=(
                Panel(title="States", queries=(overview.ACTORS_BY_STATE,), look=Look.STACKED),
                Panel(title="Lost and replaced", queries=(actors.RESTARTS,)),
                Panel(title="Lost fragments", queries=(actors.LOST_FRAGMENTS,)),
                Panel(title="Voided transitions", queries=(actors.VOIDED,)),
                Panel(title="CPU", queries=(stability.CPU,)),
                Panel(title="Pauses of the garbage collector", queries=(stability.GC_P99,), log_scale=True),
            ),
        ),
    ),
)
