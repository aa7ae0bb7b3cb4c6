"""Gradient steps of several ranks without a network: each rank's gradient is a vector that the test gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from common.clock import MonotonicClock
from common.parameters import FlatParameters
from learner.gradient_step import Committed, GradientStep, Skipped
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.config import BYTES_PER_MIB, SyncConfig
from learner.parallel.faults import Tamper, Untouched
from learner.parallel.group import Closed, Group
from learner.parallel.joining import Membership, join_group
from learner.parallel.process_group import Meeting
from learner.parallel.verified import VerifiedGroup
from learner.replica import Replica
from learner.reports import Formation
from tests.learner.ranks import together

T = TypeVar("T")
Gradient = NDArray[np.float32]
DEADLINE_S = 30.0


class StepRank:
    """Parameters p0, p1, ... of the sizes given, all zero, an optimiser, and a seat in a group."""

    def __init__(self, sizes: Sequence[int], *, max_norm: float = 0.5) -> None:
        model = nn.ParameterDict({f"p{i}": nn.Parameter(torch.zeros(size)) for i, size in enumerate(sizes)})
        self.parameters = FlatParameters(model, trainable=True)
        self.optimiser = Optimiser(OptimiserConfig(learning_rate=1e-3), self.parameters)
        self.replica = Replica(self.parameters, self.optimiser)
        self._max_norm = max_norm

    def sit_down(self, group: Group, tamper: Tamper) -> None:
        """Make steps with this group from now on."""
        self.group, self.tamper = group, tamper
        self._step = GradientStep(self.parameters, self.optimiser, group, tamper, max_gradient_norm=self._max_norm)

    @property
    def verified(self) -> VerifiedGroup:
        """The group, if there are others in it."""
        assert isinstance(self.group, VerifiedGroup)
        return self.group

    def loss(self, gradient: Gradient) -> Tensor:
        """Whose gradient is `gradient` [num_elements], bit for bit."""
        parts = zip(self.parameters.parts, self.parameters.manifest.entries, strict=True)
        terms = [part @ torch.from_numpy(gradient[entry.offset : entry.offset + entry.size]) for part, entry in parts]
        return torch.stack(terms).sum()

    def attempt(self, update: int, gradients: Sequence[Gradient]) -> tuple[Closed, list[Committed | Skipped]]:
        """One attempt at an update of as many steps; its start is restored if it is disputed."""
        self.replica.back_up()
        self.group.begin_update(update)
        made = [self._step.make(self.loss(gradient), number) for number, gradient in enumerate(gradients)]
        closed = self.group.close_update(self.replica.replicated(b""), np.zeros(1))
        if closed.dispute is not None:
            self.replica.restore()
        return closed, made

    def digest(self) -> int:
        """Of parameters and moments."""
        return self.replica.digest(b"")


class StepRanks:
    """A group of such ranks; what all of them do at once is handed to `each`."""

    def __init__(
        self, sizes: Sequence[int], num_ranks: int, *, bucket_elements: int, tampers: Sequence[Tamper] = ()
    ) -> None:
        self.ranks = [StepRank(sizes) for _ in range(num_ranks)]
        config = SyncConfig(collective_s=DEADLINE_S, bucket_mib=bucket_elements * 4 / BYTES_PER_MIB)
        meeting = Meeting("127.0.0.1", deadline_s=DEADLINE_S)
        formation = Formation(number=1, ranks=tuple(range(num_ranks)), address=meeting.address)
        clock = MonotonicClock()

        def join(place: int) -> None:
            tamper = tampers[place] if tampers else Untouched()
            member = Membership(rank=place, description={}, machine={})
            rank = self.ranks[place]
            own = meeting if place == 0 else None
            rank.sit_down(join_group(formation, member, own, rank.parameters, config, clock, tamper), tamper)

        together([lambda place=place: join(place) for place in range(num_ranks)])

    def each(self, work: Callable[[StepRank, int], T]) -> list[T]:
        """The results of `work` (rank, place), done by all ranks at once."""
        return together([lambda rank=rank, place=place: work(rank, place) for place, rank in enumerate(self.ranks)])


def random_gradients(seed: int, place: int, num_elements: int, count: int) -> list[Gradient]:
    """`count` vectors of a rank, of the spread that gradients have: most elements small, a few large."""
    rng = np.random.default_rng([seed, place])
    vectors = rng.standard_normal((count, num_elements)) * np.exp(2.0 * rng.standard_normal((count, num_elements)))
    return list((1e-3 * vectors).astype(np.float32))
