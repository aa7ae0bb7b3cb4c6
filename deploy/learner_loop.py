"""A learner rank as engines run it: started in one of three ways, metrics observed after each update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.clock import Clock
from common.metrics import LearnerMetrics
from common.weights import parameter_digest
from deploy.engines import LearnerStart
from learner.rank import LearnerRank, RankConfig
from learner.reports import UpdateOrder, UpdateReport
from learner.state import LearnerState


class LearnerLoop:
    """One rank and its metrics."""

    def __init__(self, config: RankConfig, clock: Clock, metrics: LearnerMetrics) -> None:
        self._config = config
        self._clock = clock
        self._metrics = metrics

    def start(self, start: LearnerStart) -> tuple[NDArray[np.uint8], str, int]:
        """Returns the first weights document, the digest of its parameters, and the updates they contain."""
        self._rank = LearnerRank(self._config, self._clock)
        if start.state is not None:
            self._rank.set_state(start.state)
        elif start.weights:
            self._rank.load_parameters(np.frombuffer(start.weights, dtype=np.float32), start.fingerprint)
        document = self._rank.start(version=start.version, term=start.term)
        state = self._rank.state()
        return document, parameter_digest(state.parameters), state.updates

    def update(self, order: UpdateOrder, documents: Sequence[Any]) -> tuple[UpdateReport, NDArray[np.uint8]]:
        """One update, observed."""
        report, document = self._rank.update(order, documents)
        refused: dict[str, int] = {}
        for verdict in report.verdicts:
            if verdict.refusal:
                refused[verdict.refusal] = refused.get(verdict.refusal, 0) + 1
        self._metrics.observe(
            seconds=report.seconds,
            statistics=report.statistics,
            learning_rate=report.learning_rate,
            lag=report.lag,
            version=report.version,
            rows=sum(verdict.num_valid for verdict in report.verdicts),
            steps=report.steps,
            skipped_steps=report.skipped_steps,
            gaps=report.gaps,
            refused=refused,
        )
        return report, document

    def state(self) -> LearnerState:
        """All that must survive."""
        return self._rank.state()
