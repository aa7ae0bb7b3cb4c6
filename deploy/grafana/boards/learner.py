"""What does the learner do, and what does it learn?"""

from __future__ import annotations

from deploy.grafana.boards.board import Board, Panel, Row
from deploy.prometheus.queries import learner

BOARD = Board(
    uid="truestep-learner",
    title="truestep / Learner",
    description="What the learner does with its time, what the algorithm says of itself, and what waits for it.",
    rows=(
        Row(
            title="Time",
            panels=(
                Panel(title="Time of an update by phase", queries=(learner.PHASE_MEAN,), log_scale=True),
                Panel(title="Busy", queries=(learner.BUSY_SHARE,)),
                Panel(title="Transitions accepted", queries=(learner.ACCEPTED_RATE,)),
            ),
        ),
        Row(
            title="Learning",
            panels=(
                Panel(title="Policy loss", queries=(learner.POLICY_LOSS,)),
                Panel(title="Value loss", queries=(learner.VALUE_LOSS,)),
                Panel(title="Entropy", queries=(learner.ENTROPY,)),
                Panel(title="Explained variance", queries=(learner.EXPLAINED_VARIANCE,)),
                Panel(title="Approximate KL", queries=(learner.APPROXIMATE_KL,)),
                Panel(title="Clipped rows", queries=(learner.CLIP_FRACTION,)),
            ),
        ),
        Row(
            title="Gradients",
            panels=(
                Panel(title="Norm", queries=(learner.GRADIENT_NORM,), log_scale=True),
                Panel(title="Norm by part of the network", queries=(learner.GROUP_NORM,), log_scale=True),
                Panel(title="Learning rate", queries=(learner.LEARNING_RATE,)),
                Panel(title="Gradient steps", queries=(learner.STEPS_RATE,), width=12),
                Panel(title="Skipped gradient steps", queries=(learner.SKIPPED_STEPS,), width=12),
            ),
        ),
        Row(
            title="Queue",
            panels=(
                Panel(title="Lag", queries=(learner.LAG_MEDIAN, learner.LAG_P99)),
                Panel(title="Wait of fragments", queries=(learner.FRAGMENT_WAIT, learner.OLDEST_FRAGMENT)),
                Panel(title="Fragments under way", queries=(learner.QUEUED, learner.IN_FLIGHT, learner.CAPACITY)),
                Panel(title="Starved updates", queries=(learner.STARVED_SHARE,), width=24),
            ),
        ),
        Row(
            title="GPU",
            panels=(
                Panel(title="Utilisation", queries=(learner.GPU_UTILISATION,), width=12),
                Panel(title="Memory of the GPU", queries=(learner.GPU_MEMORY_SHARE,), width=12),
            ),
        ),
    ),
)
