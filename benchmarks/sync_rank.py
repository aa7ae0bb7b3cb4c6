"""One rank of benchmarks/sync.py: the same step by four roads, in lockstep with the other rank.

python -m benchmarks.sync_rank PLACE ADDRESS ORDER      place 0 with ADDRESS "-" opens the meeting and prints it
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.report import result_line
from common.clock import NS_PER_S, MonotonicClock, thread_cpu_ns
from common.parameters import FlatParameters
from common.process import keep_freed_memory
from learner.gradient_step import GradientStep
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.buckets import BackwardOrder, Bucket, plan_buckets
from learner.parallel.config import SyncConfig
from learner.parallel.faults import Untouched
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.parallel.verified import VerifiedGroup
from learner.replica import Replica
from learner.reports import Formation

DEADLINE_S = 300.0
INPUTS = 64
CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to measure.

    Attributes:
        width, layers: of the network: `layers` hidden layers of `width` tanh units.
        rows: of each rank's minibatch.
        steps: gradient steps of an update.
        rounds: of the four roads in turn.
        ranks: in all.
    """

    width: int
    layers: int
    rows: int
    steps: int
    rounds: int
    ranks: int = 2


def network(order: Order) -> nn.Sequential:
    """The same weights in every process."""
    generator = torch.Generator().manual_seed(7)
    sizes = [INPUTS, *[order.width] * order.layers, 1]
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    model = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter in model.parameters():
            scale = parameter.shape[-1] ** -0.5
            parameter.copy_((torch.rand(parameter.shape, generator=generator) - 0.5) * 2 * scale)
    return model


class Road:
    """One way to make a step. `update()` makes `order.steps` of them."""

    def __init__(self, order: Order, place: int, device: torch.device = CPU) -> None:
        generator = torch.Generator().manual_seed(100 + place)
        self.order = order
        self.model = network(order).to(device)
        self.inputs = torch.randn(order.rows, INPUTS, generator=generator).to(device)
        self.targets = torch.randn(order.rows, 1, generator=generator).to(device)

    def loss(self, model: nn.Module) -> Tensor:
        """This rank's part of the mean squared error over the rows of all ranks."""
        error: Tensor = (model(self.inputs) - self.targets).square().sum() / (self.order.rows * self.order.ranks)
        return error


class Verified(Road):
    """The product: verified steps, a backup at the start of an update, a verdict at its end."""

    def __init__(self, order: Order, place: int, group: ProcessGroup, device: torch.device = CPU) -> None:
        super().__init__(order, place, device)
        self.parameters = FlatParameters(self.model, trainable=True)
        optimiser = Optimiser(OptimiserConfig(learning_rate=1e-5), self.parameters)
        self.replica = Replica(self.parameters, optimiser)
        self.group = VerifiedGroup(
            group,
            self.parameters,
            MonotonicClock(),
            Untouched(),
            bucket_elements=SyncConfig().bucket_elements,
            compares=True,
        )
        self.step = GradientStep(self.parameters, optimiser, self.group, max_gradient_norm=0.5)
        self.updates = 0
        self.verify_ns = self.cpu_ns = 0

    def update(self) -> None:
        """As LearnerRank does; all that only verification needs is accounted."""
        start_ns = thread_cpu_ns()
        self.group.begin_update(self.updates)
        self.replica.back_up()
        begun_ns = thread_cpu_ns()
        for number in range(self.order.steps):
            self.step.make(self.loss(self.model), number)
        made_ns = thread_cpu_ns()
        inside_ns = self.group.effort.verify_ns
        closed = self.group.close_update(self.replica.replicated(b""), np.zeros(1))
        assert closed.dispute is None, closed.dispute
        end_ns = thread_cpu_ns()
        self.updates += 1
        self.cpu_ns += end_ns - start_ns
        self.verify_ns += inside_ns + (begun_ns - start_ns) + (end_ns - made_ns)


class Unverified(Road):
    """The same step without verification: buckets, hooks, one sum."""

    def __init__(
        self, order: Order, place: int, group: ProcessGroup, device: torch.device = CPU, *, optimise: bool = True
    ) -> None:
        super().__init__(order, place, device)
        self.parameters = FlatParameters(self.model, trainable=True)
        self.optimiser = Optimiser(OptimiserConfig(learning_rate=1e-5), self.parameters)
        self.group = group
        self.optimise = optimise
        self.handles: list[Any] = []
        buckets = plan_buckets(self.parameters.manifest, SyncConfig().bucket_elements)
        self.watch = BackwardOrder(self.parameters, buckets, self._send)

    def _send(self, bucket: Bucket) -> None:
        self.handles.append(self.group.begin_sum(self.parameters.gradient[bucket.start : bucket.stop]))

    def update(self) -> None:
        """All steps of an update."""
        gradient = self.parameters.gradient
        for _ in range(self.order.steps):
            loss = self.loss(self.model)
            gradient.zero_()
            self.handles.clear()
            self.watch.begin()
            loss.backward()  # type: ignore[no-untyped-call]
            self.watch.finish()
            for handle in self.handles:
                self.group.finish(handle)
            norm = torch.linalg.vector_norm(gradient).item()
            if self.optimise:
                gradient.mul_(min(1.0, 0.5 / norm))
                self.optimiser.step()


class Reference(Road):
    """DistributedDataParallel, gradients as views of its buckets, its mean made the same sum."""

    def __init__(self, order: Order, place: int) -> None:
        super().__init__(order, place)
        self.parallel = DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def update(self) -> None:
        """Steps without an optimiser."""
        for _ in range(self.order.steps):
            loss = self.loss(self.parallel) * self.order.ranks
            self.parallel.zero_grad(set_to_none=False)
            loss.backward()  # type: ignore[no-untyped-call]
            grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
            torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(grad) for grad in grads])).item()

    def gradient(self) -> Tensor:
        """Flat."""
        return torch.cat([parameter.grad.reshape(-1) for parameter in self.model.parameters()])  # type: ignore[union-attr]


def meet(place: int, address: str, ranks: int) -> tuple[ProcessGroup, ProcessGroup, Any]:
    """Two groups of ours and the store for torch's own default group."""
    meeting = Meeting("127.0.0.1", deadline_s=DEADLINE_S) if place == 0 else None
    if meeting is not None:
        print(meeting.address, flush=True)
        address = meeting.address
    groups = []
    for number in (1, 2):
        formation = Formation(number=number, ranks=tuple(range(ranks)), address=address)
        blackboard = Blackboard(formation, place, meeting, deadline_s=DEADLINE_S)
        groups.append(ProcessGroup(blackboard, formation, place, torch.device("cpu"), deadline_s=DEADLINE_S))
        store = blackboard.store
    return groups[0], groups[1], store


def measure(order: Order, place: int, address: str) -> dict[str, Any]:
    """Rounds of the four roads in turn."""
    first, second, store = meet(place, address, order.ranks)
    dist.init_process_group(
        "gloo", store=store, rank=place, world_size=order.ranks, timeout=timedelta(seconds=DEADLINE_S)
    )
    verified = Verified(order, place, first)
    roads: dict[str, Callable[[], None]] = {"verified": verified.update}
    plain, reduce_only = Unverified(order, place, second), Unverified(order, place, second, optimise=False)
    reference = Reference(order, place)
    roads |= {"unverified": plain.update, "reduce": reduce_only.update, "ddp": reference.update}
    for update in roads.values():
        update()  # first touch of every page, connections, DDP's own buckets
    difference = (reference.gradient() - reduce_only.parameters.gradient).abs().max().item()
    verified.verify_ns = verified.cpu_ns = 0
    seconds = take_turns(roads, order)
    verified.group.leave()
    return {
        "parameters": verified.parameters.num_elements,
        "seconds_per_step": seconds,
        "verify_share": verified.verify_ns / verified.cpu_ns,
        "verify_ms_per_step": verified.verify_ns / 1e6 / (order.rounds * order.steps),
        "equal_bits_with_ddp": difference == 0.0,
        "difference_from_ddp": difference,
    }


def take_turns(roads: dict[str, Callable[[], None]], order: Order) -> dict[str, list[float]]:
    """Seconds per step of each road, by round; the order is reversed every other round."""
    clock = MonotonicClock()
    seconds: dict[str, list[float]] = {name: [] for name in roads}
    for number in range(order.rounds):
        for name in list(roads)[:: 1 if number % 2 == 0 else -1]:
            dist.barrier()
            start_ns = clock.now_ns()
            roads[name]()
            seconds[name].append((clock.now_ns() - start_ns) / NS_PER_S / order.steps)
    return seconds


def main() -> None:
    """Entry point."""
    torch.set_num_threads(1)
    keep_freed_memory()
    place, address, order = int(sys.argv[1]), sys.argv[2], Order(**json.loads(sys.argv[3]))
    result = measure(order, place, address)
    if place == 0:
        medians = {name: statistics.median(readings) for name, readings in result["seconds_per_step"].items()}
        print(result_line({**result, "medians": medians}), flush=True)


if __name__ == "__main__":
    main()
