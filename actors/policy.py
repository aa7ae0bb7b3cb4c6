"""Observations to actions: the network as actors run it, in inference mode, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from common.distributions import draw
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.specs import ArraySpec, SpaceSpec
from common.weights import decode_weights

Arrays = Mapping[str, NDArray[Any]]


class Acted(NamedTuple):
    """One policy pass over B lanes.

    Attributes:
        action: stored form [B, *shape].
        log_prob: float32 [B].
        value: float32 [B].
    """

    action: NDArray[Any]
    log_prob: NDArray[np.float32]
    value: NDArray[np.float32]


class Policy:
    """The network with the weights of one version. Raises nothing while acting.

    A weights document is verified whole before a byte of the live weights changes; `follow` is called between
    fragments only, so a fragment is made by exactly one version.
    """

    def __init__(self, observation: SpaceSpec, action: ArraySpec, net: NetConfig) -> None:
        placeholder = Streams(0).generator(Role.CHECKER, 0, purpose=Purpose.INITIALISE)  # overwritten by `follow`
        self._model = make_actor_critic(observation, action, net, placeholder)
        self._parameters = FlatParameters(self._model, trainable=False)
        self._box = action.kind == "box"
        self.head = self._model.head
        self.version = -1

    def follow(self, document: Any) -> None:
        """Verify `document` and make its weights live. Raises WireError and keeps the old weights if it is damaged."""
        weights = decode_weights(document, self._parameters.manifest)
        self._parameters.load(weights.flat)
        self.version = weights.header.version

    @torch.inference_mode()
    def act(self, observation: Arrays, noise: NDArray[np.float32]) -> Acted:
        """Sample actions for `observation` {part: [B, *shape]} with `noise` [B, *noise_shape]."""
        parameters, value = self._model(_tensors(observation))
        action, log_prob = draw(self.head, parameters, torch.from_numpy(noise))
        return Acted(action.numpy(), log_prob.numpy(), value.numpy())

    @torch.inference_mode()
    def values(self, observation: Arrays) -> NDArray[np.float32]:
        """Values float32 [B]."""
        value: NDArray[np.float32] = self._model(_tensors(observation))[1].numpy()
        return value

    @torch.inference_mode()
    def greedy(self, observation: Arrays) -> NDArray[Any]:
        """Most probable actions, stored form [B, *shape]."""
        action: NDArray[Any] = self.head.mode(self._model(_tensors(observation))[0]).numpy()
        return action

    def draw_noise(self, generators: list[np.random.Generator], num_rows: int) -> NDArray[np.float32]:
        """Noise [num_rows, B, *noise_shape]: one block from each lane's own generator."""
        shape = (num_rows, *self.head.noise_shape)
        block = np.empty((num_rows, len(generators), *self.head.noise_shape), dtype=np.float32)
        for lane, generator in enumerate(generators):
            uniform = self.head.noise == "uniform"
            draw = generator.random if uniform else generator.standard_normal
            block[:, lane] = draw(shape, dtype=np.float32)
        return block


def _tensors(observation: Arrays) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(part) for name, part in observation.items()}
