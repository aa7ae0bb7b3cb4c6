"""Fragments as sequences: tensors to unroll a network over, beside `batches` the only place that crosses to a device.

Nothing is copied or joined on a CPU: the tensors are views of the frames as they came, whole fragments or blocks of
their lanes. Rows that are neither transitions nor bootstrapped from may hold anything; they go through the network with
the others and are chosen away behind it. Only what is not finite there is cleared, in a copy: in a backward pass 0
times NaN is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from common.fragment import Fragment
from common.nets import ActorCritic
from learner.intake import Accepted


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sequences:
    """T rows of L lanes of one fragment, side by side; nobody writes into them.

    Attributes:
        observation: {part: [T+1, L, *shape]} in stored dtype, on the learner's device.
        action: [T, L, *shape] in stored form, on the device; 0 on invalid rows.
        core_state: float32 [L, S], recurrent state before row 0, on the device.
        valid_before: uint8 [T+1, L], on the device: 0 where the state is lost before the row.
        used: float32 [T, L], on the device: 1 on valid rows, else 0.
        log_prob, reward: float32 arrays [T, L] of the fragment.
        end, valid: uint8 arrays [T, L] of the fragment.
        weight: of this fragment's loss.
    """

    observation: dict[str, Tensor]
    action: Tensor
    core_state: Tensor
    valid_before: Tensor
    used: Tensor
    log_prob: NDArray[np.float32]
    reward: NDArray[np.float32]
    end: NDArray[np.uint8]
    valid: NDArray[np.uint8]
    weight: float

    @property
    def num_lanes(self) -> int:
        """L."""
        return len(self.core_state)

    def lanes(self, start: int, stop: int) -> Sequences:
        """Lanes `start` to `stop` of these, as views."""
        if (start, stop) == (0, self.num_lanes):
            return self
        columns = {each.name: getattr(self, each.name) for each in fields(self)}
        of_state = {"observation", "core_state", "weight"}
        cut = {name: column[:, start:stop] for name, column in columns.items() if name not in of_state}
        observation = {name: part[:, start:stop] for name, part in self.observation.items()}
        return Sequences(observation=observation, core_state=self.core_state[start:stop], weight=self.weight, **cut)


def sequences_of(accepted: Accepted, device: torch.device, staleness_exponent: float = 0.0) -> Sequences:
    """A fragment as sequences; its loss weighs (1 + lag)^-`staleness_exponent`."""
    fragment = accepted.fragment
    valid = fragment.valid
    valid_before = np.ones((len(valid) + 1, valid.shape[1]), np.uint8)
    valid_before[1:] = valid
    action = fragment.action
    if not valid.all():
        action = np.where(valid.reshape(*valid.shape, *[1] * (action.ndim - 2)), action, np.zeros((), action.dtype))
    return Sequences(
        observation={name: _tensor(part, device) for name, part in _sound_observation(fragment).items()},
        action=_tensor(action, device),
        core_state=_tensor(fragment.core_state, device),
        valid_before=_tensor(valid_before, device),
        used=_tensor(valid.astype(np.float32), device),
        log_prob=fragment.log_prob,
        reward=fragment.reward,
        end=fragment.end,
        valid=valid,
        weight=(1.0 + accepted.lag) ** -staleness_exponent,
    )


def _sound_observation(fragment: Fragment) -> dict[str, NDArray[Any]]:
    """Observations in which everything is finite that nothing depends on; copied only where it was not."""
    idle = fragment.valid == 0
    unused = np.ones((len(idle) + 1, idle.shape[1]), bool)
    unused[:-1] = idle
    unused[1:] &= idle
    sound = dict(fragment.observation)
    for name, part in fragment.observation.items():
        if part.dtype.kind == "f" and not np.isfinite(part[unused]).all():
            sound[name] = part.copy()
            sound[name][unused] = 0.0
    return sound


class _Lent:
    """An array's memory, offered as if it could be written to: torch warns of memory that cannot."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array  # kept alive by whoever views this
        interface = array.__array_interface__
        self.__array_interface__ = interface | {"data": (interface["data"][0], False)}


def _tensor(array: NDArray[Any], device: torch.device) -> Tensor:
    return torch.from_numpy(np.asarray(_Lent(array))).to(device)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unrolled:
    """What a network says of sequences, differentiable.

    Attributes:
        log_prob: [T, L], of the stored actions.
        entropy: [T, L].
        value: [T+1, L].
    """

    log_prob: Tensor
    entropy: Tensor
    value: Tensor

    def log_ratio(self, sequences: Sequences) -> NDArray[np.float64]:
        """log π / μ [T, L] for the policy μ that acted; 0 on invalid rows."""
        log_prob = self.log_prob.detach().cpu().numpy().astype(np.float64)
        return np.where(sequences.valid, log_prob - sequences.log_prob, 0.0)


def unrolled(model: ActorCritic, sequences: Sequences) -> Unrolled:
    """One pass of the network over all T+1 rows."""
    parameters, value, _ = model.unroll(sequences.observation, sequences.core_state, sequences.valid_before)
    shape = sequences.valid.shape
    log_prob, entropy = model.head.log_prob_and_entropy(parameters[:-1].flatten(0, 1), sequences.action.flatten(0, 1))
    return Unrolled(log_prob=log_prob.view(shape), entropy=entropy.view(shape), value=value)
