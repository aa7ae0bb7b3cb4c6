"""What wears the run out?"""

from __future__ import annotations

from deploy.grafana.boards.board import FULL_WIDTH, Board, Look, Panel, Row
from deploy.prometheus.queries import stability

STAGE_STATES = ((0, "moving"), (1, "starved"), (2, "blocked"), (3, "stuck"))

BOARD = Board(
    uid="truestep-stability",
    title="truestep / Stability",
    description="What wears a run out: rollbacks, checkpoints, memory, processes that go away, what watching costs.",
    rows=(
        Row(
            title="Going back",
            panels=(
                Panel(title="Rollbacks", queries=(stability.ROLLBACKS,)),
                Panel(title="Term", queries=(stability.TERM,)),
                Panel(title="Undone", queries=(stability.UNDONE,)),
            ),
        ),
        Row(
            title="Checkpoints",
            panels=(
                Panel(title="Checkpoints", queries=(stability.CHECKPOINTS_WRITTEN, stability.CHECKPOINTS_FAILED)),
                Panel(title="Time to write one", queries=(stability.CHECKPOINT_MEAN,)),
                Panel(title="Age of the newest", queries=(stability.CHECKPOINT_AGE,)),
            ),
        ),
        Row(
            title="Memory",
            panels=(
                Panel(title="Host memory", queries=(stability.HOST_MEMORY,), width=6),
                Panel(title="Memory by process", queries=(stability.RESIDENT,), width=6),
                Panel(title="Object store", queries=(stability.OBJECT_STORE,), width=6),
                Panel(title="Open files", queries=(stability.OPEN_FILES,), width=6),
            ),
        ),
        Row(
            title="The ring",
            panels=(
                Panel(
                    title="Stages", queries=(stability.STAGES,), look=Look.STATES, width=FULL_WIDTH, names=STAGE_STATES
                ),
                Panel(title="What each stage does", queries=(stability.STAGE_RATE,), width=FULL_WIDTH, log_scale=True),
            ),
        ),
        Row(
            title="Processes",
            panels=(
                Panel(title="Listed and silent", queries=(stability.SILENT_PROCESSES,)),
                Panel(title="Driver gone", queries=(stability.DRIVER_GONE,)),
                Panel(title="On another GPU than its own", queries=(stability.GPU_MISPLACED,)),
                Panel(title="CPU", queries=(stability.CPU,)),
                Panel(title="Pauses of the garbage collector", queries=(stability.GC_P99,), log_scale=True),
            ),
        ),
        Row(
            title="What watching costs",
            panels=(
                Panel(title="CPU for metrics", queries=(stability.METRICS_CPU,)),
                Panel(title="Time of a scrape", queries=(stability.SCRAPE_SECONDS,)),
                Panel(title="Series", queries=(stability.SERIES,)),
            ),
        ),
    ),
)
