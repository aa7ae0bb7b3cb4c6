"""What ranks hold alike: its digest sees every bit, and going back restores every bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from common.parameters import FlatParameters
from learner.optimiser import Optimiser, OptimiserConfig
from learner.parallel.digests import CHUNK_ELEMENTS
from learner.parallel.faults import flip_bit
from learner.replica import Replica
from learner.target import TargetNetwork


class Lab:
    """Parameters "front" (a chunk and a half) and "rear" (100 elements), two steps into training."""

    def __init__(self) -> None:
        self.parameters = FlatParameters(self.model(), trainable=True)
        self.optimiser = Optimiser(OptimiserConfig(learning_rate=0.1), self.parameters)
        self.replica = Replica(self.parameters, self.optimiser)
        for _ in range(2):
            self.step()

    @staticmethod
    def model() -> Any:
        """Fresh parameters."""
        front, rear = torch.linspace(-1.0, 1.0, CHUNK_ELEMENTS * 3 // 2), torch.ones(100)
        return nn.ParameterDict({"front": nn.Parameter(front), "rear": nn.Parameter(rear)})

    def step(self) -> None:
        """Along a gradient that is another everywhere."""
        self.parameters.gradient.copy_(torch.linspace(-3.0, 5.0, self.parameters.num_elements))
        self.optimiser.step()

    def vectors(self) -> list[torch.Tensor]:
        """Parameters, both moments, the step count."""
        return [self.parameters.vector.detach(), *self.optimiser.tensors()]

    def bits(self) -> list[bytes]:
        """All of them."""
        return [vector.numpy().tobytes() for vector in self.vectors()]


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("bit", [0, 31])
def test_the_digest_sees_any_bit_of_anything(which: int, bit: int) -> None:
    """Of parameters, first and second moment, step count; and the counters."""
    lab = Lab()
    before = lab.replica.digest(b"7")
    assert lab.replica.digest(b"7") == before != lab.replica.digest(b"8")
    flip_bit(lab.vectors()[which].view(-1), -1, bit)
    assert lab.replica.digest(b"7") != before


def test_going_back_restores_every_bit_again_and_again() -> None:
    """Also into the tensors that the optimiser goes on with: the same steps lead to the same state."""
    lab, twin = Lab(), Lab()
    lab.replica.back_up()
    before = lab.bits()
    for _ in range(2):
        lab.step()
        assert lab.bits() != before
        lab.replica.restore()
        assert lab.bits() == before
    lab.step()
    twin.step()
    assert lab.bits() == twin.bits()


def test_a_later_copy_takes_the_place_of_the_one_before_in_the_same_storage() -> None:
    """Nothing is allocated after the first."""
    lab = Lab()
    lab.replica.back_up()
    places = [copy.data_ptr() for copy in lab.replica._copy]
    lab.step()
    lab.replica.back_up()
    expected = lab.bits()
    lab.step()
    lab.replica.restore()
    assert lab.bits() == expected
    assert [copy.data_ptr() for copy in lab.replica._copy] == places


@pytest.mark.parametrize(
    ("which", "element", "chunk", "names"),
    [
        (0, 0, 0, ("front",)),
        (0, CHUNK_ELEMENTS, 1, ("front", "rear")),  # the second chunk holds the end of one and all of the other
        (1, 5, 2, ("front",)),
        (2, CHUNK_ELEMENTS + 1, 5, ("front", "rear")),
        (3, 0, 6, ()),  # the step count belongs to no parameter
    ],
)
def test_a_difference_is_located(which: int, element: int, chunk: int, names: tuple[str, ...]) -> None:
    """Chunks of the parameters come first, then those of each moment; names are those of the parameters."""
    lab = Lab()
    replicated = lab.replica.replicated(b"")
    before = replicated.chunk_digests()
    flip_bit(lab.vectors()[which].view(-1), element, 3)
    assert np.flatnonzero(before != replicated.chunk_digests()).tolist() == [chunk]
    assert replicated.names([chunk]) == names
    assert replicated.digest != lab.replica.digest(b"")


def test_a_target_network_is_part_of_it() -> None:
    """Its bits are in the digest, it goes back with the rest, and a difference in it has the parameters' names."""
    lab = Lab()
    target = TargetNetwork(lab.model(), lab.parameters, every=1)
    replica = Replica(lab.parameters, lab.optimiser, target)
    replica.back_up()
    before, replicated = replica.digest(b""), replica.replicated(b"")
    chunks = replicated.chunk_digests()
    flip_bit(target.vector, CHUNK_ELEMENTS, 0)
    assert replica.digest(b"") != before == replicated.digest
    assert np.flatnonzero(chunks != replicated.chunk_digests()).tolist() == [8]
    assert (replicated.names([8]), replicated.names([7]), replicated.names([6])) == (("front", "rear"), ("front",), ())
    replica.restore()
    assert replica.digest(b"") == before


def test_parameters_have_a_digest_each() -> None:
    """What another seed of the initialiser is found by."""
    lab = Lab()
    before = lab.replica.parameter_digests()
    flip_bit(lab.parameters.vector.detach(), CHUNK_ELEMENTS * 3 // 2, 0)
    after = lab.replica.parameter_digests()
    assert list(before) == ["front", "rear"]
    assert before["front"] == after["front"] and before["rear"] != after["rear"]
