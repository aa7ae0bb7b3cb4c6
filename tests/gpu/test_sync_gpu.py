"""What needs a GPU of verified sync: NCCL, digests where the gradient lives, page-locked staging, order of streams.

Needs torch, numpy, msgpack, xxhash, prometheus-client and pytest only; skipped where torch sees no GPU. On a machine
without the plugins that pyproject.toml configures:

    python -m pytest -c /dev/null --rootdir . tests/gpu
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import nn

from common.clock import MonotonicClock
from common.parameters import FlatParameters
from learner.batches import BatchBuilder
from learner.gradient_step import Committed, GradientStep, Skipped
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.conservation import Scale
from learner.parallel.digests import CHUNK_ELEMENTS, chunk_bounds, digest_chunks, weighted_digests
from learner.parallel.faults import FaultKind, RankFault, Saboteur, Tamper, Untouched
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.parallel.verified import VerifiedGroup
from learner.replica import Replica
from learner.reports import Fault, Formation
from tests.support import fragment, layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")
DEADLINE_S = 60.0


class Lab:
    """One rank on a GPU, in a group of one over NCCL, verified as a larger one would be."""

    def __init__(self, tamper: Tamper | None = None) -> None:
        self.device = torch.device("cuda")
        generator = torch.Generator().manual_seed(3)
        self.model = nn.Sequential(nn.Linear(64, 300), nn.Tanh(), nn.Linear(300, 300), nn.Tanh(), nn.Linear(300, 1))
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
        self.model.to(self.device)
        self.inputs = torch.randn(256, 64, generator=generator).to(self.device)
        self.parameters = FlatParameters(self.model, trainable=True)
        self.optimiser = Optimiser(OptimiserConfig(learning_rate=1e-3), self.parameters)
        self.replica = Replica(self.parameters, self.optimiser)
        formation = Formation(number=1, ranks=(0,))
        blackboard = Blackboard(formation, 0, Meeting("127.0.0.1", deadline_s=DEADLINE_S), deadline_s=DEADLINE_S)
        self.processes = ProcessGroup(blackboard, formation, 0, self.device, deadline_s=DEADLINE_S)
        tamper = tamper or Untouched()
        self.group = VerifiedGroup(
            self.processes, self.parameters, MonotonicClock(), tamper, bucket_elements=40_000, compares=True
        )
        self.step = GradientStep(self.parameters, self.optimiser, self.group, tamper, max_gradient_norm=0.5)

    def update(self, number: int = 0, steps: int = 4) -> list[Committed | Skipped]:
        """Some steps; what they came to."""
        self.group.begin_update(number)
        return [self.step.make(self.model(self.inputs).square().mean(), step) for step in range(steps)]

    def close(self) -> Fault | None:
        """The verdict: what about, if there is a dispute."""
        closed = self.group.close_update(self.replica.replicated(b""), np.zeros(1))
        return None if closed.dispute is None else closed.dispute.fault


@pytest.fixture
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.group.leave()


def test_a_clean_update_over_nccl_is_agreed_on(lab: Lab) -> None:
    """Several buckets, several steps: every verdict is good, and the reduced gradient is the local one."""
    assert all(isinstance(step, Committed) for step in lab.update())
    assert lab.close() is None
    reduced = lab.parameters.gradient.clone()
    lab.parameters.gradient.zero_()
    assert torch.isfinite(reduced).all()


def test_the_sum_of_one_is_bit_for_bit_what_backward_gave(lab: Lab) -> None:
    """Hooks, buckets and streams lose and repeat nothing: equal to a backward pass without a group."""
    lab.group.begin_update(0)
    lab.parameters.gradient.zero_()
    lab.group.begin_step()
    lab.model(lab.inputs).square().mean().backward()
    lab.group.finish_step()
    reduced = lab.parameters.gradient.clone()
    lab.parameters.gradient.zero_()
    lab.model(lab.inputs).square().mean().backward()
    assert torch.equal(reduced, lab.parameters.gradient)


@pytest.mark.parametrize("size", [1, 1000, CHUNK_ELEMENTS, 3 * CHUNK_ELEMENTS + 17])
def test_digests_on_the_gpu_are_those_of_the_cpu(size: int) -> None:
    """Integer arithmetic rounds nothing: the same digest of the same bits, wherever it is computed."""
    vector = torch.randn(size, generator=torch.Generator().manual_seed(size))
    bounds = chunk_bounds(0, size)
    assert np.array_equal(digest_chunks(vector.cuda(), bounds), weighted_digests(vector, bounds))


def test_weighing_on_the_gpu_agrees_with_float64() -> None:
    """Within the tolerance it claims itself."""
    vector = torch.randn(1_000_003, generator=torch.Generator().manual_seed(1))
    measured = Scale(vector.cuda()).measure()()
    assert abs(measured.total - float(vector.double().sum())) <= measured.tolerance
    assert measured.square == pytest.approx(float(vector.double().square().sum()), rel=1e-4)


def test_a_gradient_that_is_not_finite_is_skipped(lab: Lab) -> None:
    """As on a CPU: a value, and no dispute."""
    lab.group.begin_update(0)
    made = lab.step.make(self_loss(lab) * torch.nan)
    assert isinstance(made, Skipped)
    assert lab.close() is None


def self_loss(lab: Lab) -> torch.Tensor:
    return lab.model(lab.inputs).square().mean()


def test_a_bit_flipped_on_the_way_is_caught_by_conservation() -> None:
    """The sign of a large element, changed after it was weighed: what came out is not what went in."""
    clean = Lab()
    clean.update(steps=1)
    largest = int(clean.parameters.gradient.abs().argmax())
    clean.group.leave()
    fault = RankFault(kind=FaultKind.FLIP_OUTGOING, rank=0, update=0, step=1, element=largest, bit=31)
    lab = Lab(Saboteur((fault,), MonotonicClock()))
    lab.update()
    assert lab.close() is Fault.CONSERVATION
    lab.group.leave()


def test_staging_is_page_locked_and_arrives_whole() -> None:
    """A batch on the GPU holds the fragment's valid rows, also when the storage is used a second time."""
    shape = layout(16, 4)
    builder = BatchBuilder(shape, torch.device("cuda"))
    generator = np.random.default_rng(0)
    for _ in range(3):
        obs = generator.standard_normal((17, 4, 2)).astype(np.float32)
        batch = builder.build([fragment(shape, obs=obs)], lambda each: np.zeros(each.reward.shape))
        assert batch is not None and batch.observation["obs"].is_cuda
        assert np.array_equal(batch.observation["obs"].cpu().numpy(), obs[:-1].reshape(-1, 2))
    assert all(torch.from_numpy(room).is_pinned() for room in builder._storage.values())


def test_restoring_goes_back_to_the_bits_of_the_backup(lab: Lab) -> None:
    """Parameters and moments on the GPU."""
    before = lab.replica.digest(b"")
    lab.replica.back_up()
    lab.update()
    assert lab.close() is None
    assert lab.replica.digest(b"") != before
    lab.replica.restore()
    assert lab.replica.digest(b"") == before
