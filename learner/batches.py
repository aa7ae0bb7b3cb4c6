"""Fragments to tensors: the only place where dtype and device are crossed.

Valid rows of all fragments of an update, in the order of the fragments, become one batch of N rows. Storage is kept
from update to update and grows only when a batch is larger than any before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.fragment import Fragment, FragmentLayout

SIGNED_TWIN = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """N valid rows.

    Attributes:
        observation: {part: [N, *shape]} in stored dtype.
        action: [N, *shape] in stored form.
        log_prob: [N] float32, of the behaviour policy.
        value: [N] float32, of the behaviour policy.
        advantage: [N] float32.
        target: [N] float32: what the value is regressed on.
    """

    observation: dict[str, Tensor]
    action: Tensor
    log_prob: Tensor
    value: Tensor
    advantage: Tensor
    target: Tensor

    def __len__(self) -> int:
        return len(self.log_prob)

    def rows(self, index: Tensor) -> Batch:
        """The rows `index` [M] (on any device), copied."""
        index = index.to(self.log_prob.device)
        return Batch(
            observation={name: _select(part, index) for name, part in self.observation.items()},
            action=self.action.index_select(0, index),
            log_prob=self.log_prob.index_select(0, index),
            value=self.value.index_select(0, index),
            advantage=self.advantage.index_select(0, index),
            target=self.target.index_select(0, index),
        )


def _select(part: Tensor, index: Tensor) -> Tensor:
    """torch selects no rows of the wider unsigned integers: their bits go as signed ones."""
    twin = SIGNED_TWIN.get(part.dtype)
    return part.index_select(0, index) if twin is None else part.view(twin).index_select(0, index).view(part.dtype)


Advantages = Callable[[Fragment], NDArray[np.float64]]


class BatchBuilder:
    """Builds batches for one layout on one device."""

    def __init__(self, layout: FragmentLayout, device: torch.device) -> None:
        self._layout = layout
        self._device = device
        self._pinned = device.type == "cuda"
        self._storage: dict[str, NDArray[np.generic]] = {}

    def build(self, fragments: Sequence[Fragment], advantages: Advantages) -> Batch | None:
        """One batch of all valid rows, or None if there are none. `advantages` maps a fragment to float64 [T, B].

        The batch aliases storage that the next call overwrites.
        """
        rows = [np.flatnonzero(fragment.valid) for fragment in fragments]
        total = sum(len(index) for index in rows)
        if not total:
            return None
        columns: dict[str, list[NDArray[np.generic]]] = {}
        for fragment in fragments:
            advantage = advantages(fragment)
            for name, column in self._columns(fragment, advantage).items():
                columns.setdefault(name, []).append(column)
        tensors = {name: self._gather(name, parts, rows, total) for name, parts in columns.items()}
        observation = {name: tensors.pop(name) for name, _ in self._layout.observation}
        return Batch(observation=observation, **tensors)

    def _columns(self, fragment: Fragment, advantage: NDArray[np.float64]) -> dict[str, NDArray[np.generic]]:
        value = fragment.value[:-1]
        columns: dict[str, NDArray[np.generic]] = {n: part[:-1] for n, part in fragment.observation.items()}
        columns["action"] = fragment.action
        columns["log_prob"] = fragment.log_prob
        columns["value"] = value
        with np.errstate(over="ignore"):  # becomes inf, and the gradient step that it spoils is skipped and named
            columns["advantage"] = advantage.astype(np.float32)
            columns["target"] = (advantage + value).astype(np.float32)
        return columns

    def _gather(self, name: str, parts: list[NDArray[np.generic]], rows: list[NDArray[np.intp]], total: int) -> Tensor:
        flat = [part.reshape(-1, *part.shape[2:]) for part in parts]
        storage = self._room(name, total, flat[0])
        filled = 0
        for part, index in zip(flat, rows, strict=True):
            np.take(part, index, axis=0, out=storage[filled : filled + len(index)], mode="clip")
            filled += len(index)
        return torch.from_numpy(storage[:total]).to(self._device, non_blocking=self._pinned)

    def _room(self, name: str, total: int, like: NDArray[np.generic]) -> NDArray[np.generic]:
        storage = self._storage.get(name)
        if storage is None or len(storage) < total:
            storage = self._storage[name] = self._make_room((total, *like.shape[1:]), like.dtype)
        return storage

    def _make_room(self, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> NDArray[np.generic]:
        """For a GPU in page-locked memory: copies from it are queued, and the host goes on gathering the next column.

        Within one update all copies are over before the storage is used again: every gradient step waits for its norm.
        """
        if not self._pinned:
            return np.empty(shape, dtype=dtype)
        num_bytes = math.prod(shape) * dtype.itemsize
        return torch.empty(num_bytes, dtype=torch.uint8, pin_memory=True).numpy().view(dtype).reshape(shape)
