"""What every rank holds alike: parameters, moments, statistics and counters; their digest, and a copy to go back to."""

from __future__ import annotations

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from common.parameters import FlatParameters
from learner.optimiser import Optimiser
from learner.parallel.buckets import names_between
from learner.parallel.digests import chunk_bounds, digest_chunks
from learner.parallel.group import Replicated
from learner.target import TargetNetwork


class Replica:
    """The replicated state of one rank. The copy is allocated once.

    Args:
        target: the target network, if there is one.
        statistics: of what is normalised, float64 [n]; changed in place.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        optimiser: Optimiser,
        target: TargetNetwork | None = None,
        statistics: NDArray[np.float64] | None = None,
    ) -> None:
        self._parameters = parameters
        self._optimiser = optimiser
        self._target = target
        self._statistics = [] if statistics is None else [torch.from_numpy(statistics)]
        self._copy: list[Tensor] = []

    @torch.no_grad()
    def back_up(self) -> None:
        """Remember everything as it is."""
        vectors = self._vectors()
        if not self._copy:
            self._copy = [torch.empty_like(vector) for vector in vectors]
        for copy, vector in zip(self._copy, vectors, strict=True):
            copy.copy_(vector)

    @torch.no_grad()
    def restore(self) -> None:
        """Go back to what `back_up` remembered."""
        for copy, vector in zip(self._copy, self._vectors(), strict=True):
            vector.copy_(copy)

    def digest(self, counters: bytes) -> int:
        """128 bits over every byte of parameters, moments, target network and statistics, and `counters`."""
        hasher = xxhash.xxh3_128()
        for vector in self._vectors():
            hasher.update(vector.reshape(-1).cpu().numpy().data)
        hasher.update(counters)
        return hasher.intdigest()

    def replicated(self, counters: bytes) -> Replicated:
        """For the verdict of a group."""
        return Replicated(digest=self.digest(counters), chunk_digests=self._chunk_digests, names=self._names)

    def parameter_digests(self) -> dict[str, str]:
        """A digest of each parameter by name: what a difference in values is traced by."""
        flat = self._parameters.numpy()
        views = self._parameters.manifest.views(flat)
        return {name: xxhash.xxh3_64_hexdigest(np.ascontiguousarray(view).data) for name, view in views.items()}

    def _vectors(self) -> list[Tensor]:
        return [*self._of_parameters(), *self._statistics]

    def _of_parameters(self) -> list[Tensor]:
        """Vectors of a number per parameter, and the step count, which stands fourth."""
        target = [] if self._target is None else [self._target.vector]
        return [self._parameters.vector.detach(), *self._optimiser.tensors(), *target]

    def _chunk_digests(self) -> NDArray[np.uint64]:
        """Of each vector in turn; a number that is no vector is a chunk of its own."""
        vectors = [vector.reshape(-1) for vector in self._vectors()]
        return np.concatenate([digest_chunks(vector, chunk_bounds(0, len(vector))) for vector in vectors])

    def _names(self, chunks: list[int]) -> tuple[str, ...]:
        """The step count belongs to all parameters, so to none; statistics, which come last, to none either."""
        bounds = chunk_bounds(0, self._parameters.num_elements)
        places = [bound for vector in self._of_parameters() for bound in (bounds if vector.dim() else [None])]
        found: dict[str, None] = {}
        named = (places[chunk] for chunk in chunks if chunk < len(places))
        for start, stop in (place for place in named if place is not None):
            found.update(dict.fromkeys(names_between(self._parameters.manifest, start, stop)))
        return tuple(found)
