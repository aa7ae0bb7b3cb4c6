"""Does everything add up?"""

from __future__ import annotations

from deploy.grafana.boards.board import Board, Look, Panel, Row
from deploy.prometheus.queries import integrity, overview

BOARD = Board(
    uid="truestep-integrity",
    title="truestep / Sync and integrity",
    description="Does everything add up: the fate of every transition, and the agreement of the learner ranks.",
    rows=(
        Row(
            title="Every transition has one fate",
            panels=(
                Panel(title="Unaccounted for", queries=(integrity.UNBALANCED,), look=Look.FIGURE),
                Panel(title="Produced and trained", queries=(integrity.PRODUCED_RATE, integrity.TRAINED_RATE)),
                Panel(title="Share dropped", queries=(integrity.DROPPED_SHARE,)),
                Panel(title="Dropped by reason", queries=(integrity.DROPPED_RATE,), look=Look.STACKED),
                Panel(title="Damaged", queries=(integrity.DAMAGED,)),
                Panel(title="Fragments refused", queries=(integrity.REFUSED, integrity.MISSING)),
            ),
        ),
        Row(
            title="Ranks agree",
            panels=(
                Panel(title="Verified updates", queries=(integrity.VERIFIED_SHARE,), look=Look.FIGURE),
                Panel(title="Mismatches", queries=(integrity.MISMATCHES,)),
                Panel(title="Failed attempts", queries=(integrity.FAILURES,)),
                Panel(title="Updates made again", queries=(integrity.RETRIES,)),
                Panel(title="Verified gradient steps", queries=(integrity.VERIFIED_STEPS,)),
                Panel(title="Audited gradient steps", queries=(integrity.AUDITED_RATE,)),
                Panel(title="What sync costs", queries=(integrity.SYNC_SHARE,), look=Look.STACKED),
                Panel(title="Bytes reduced", queries=(integrity.REDUCED_BYTES,)),
                Panel(title="Norm of each rank's own gradients", queries=(integrity.LOCAL_NORM,), log_scale=True),
            ),
        ),
        Row(
            title="The group",
            panels=(
                Panel(title="Ranks", queries=(overview.RANKS_BY_STATE,), look=Look.STACKED),
                Panel(title="Ranks lost and replaced", queries=(integrity.RANK_RESTARTS,)),
                Panel(title="Recovery", queries=(integrity.RECOVERY_P90,)),
            ),
        ),
    ),
)
