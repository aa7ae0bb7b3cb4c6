"""`python -m tests.e2e.slow_learner OUT UPDATES`: a run whose learner sleeps before each update, ten times as long as
that takes; its actors do not. It ends by SIGTERM."""

from __future__ import annotations

import sys
from pathlib import Path

from deploy.config import parse_config
from deploy.drill_faults import Drill
from deploy.session import train
from learner.parallel.faults import FaultKind, RankFault

SLEEP_S = 0.25  # an update of 2,048 rows takes about 0.02 s
CONFIG = {
    "env": {"id": "CartPole-v1"},
    "algo": "impala",
    "steps": 1_000_000_000,
    "actors": {"num": 2, "lanes": 64, "rows": 32},
    "evaluation": {"every": 0, "final_episodes": 1},
}

if __name__ == "__main__":
    out, updates = Path(sys.argv[1]), range(int(sys.argv[2]))
    delays = tuple(RankFault(kind=FaultKind.DELAY, rank=0, update=each, seconds=SLEEP_S) for each in updates)
    sys.exit(train(parse_config(CONFIG), out=out, run="r", drill=Drill(of_ranks=delays)).exit_code)
