"""Observations to actions: the network as actors run it, in inference mode, on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from common.distributions import draw
from common.input_stage import InputStage
from common.nets import NetConfig, make_actor_critic
from common.normalize import InputScale
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.specs import ArraySpec, SpaceSpec
from common.weights import Weights, decode_weights

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


class _Ready(NamedTuple):
    """A verified document: parameters, and how they see observations."""

    weights: Weights
    input_stage: InputStage | None


class Policy:
    """The network with the weights of one version, and the recurrent state of its lanes. Raises nothing while acting.

    A weights document is verified whole before a byte of the live weights changes; `follow` is called between
    fragments only, so a fragment is made by exactly one version: of the parameters, and of the statistics by which the
    network sees observations, which come in the same document. The state stays when weights change: a lane goes on in
    its episode with what it remembers.

    `act` and `greedy` advance the state by one tick of all lanes; `values` reads it. Whoever steps the environments
    tells of lanes that begin an episode (`reset`). Where `state_size` is 0 nobody needs to.
    """

    def __init__(self, observation: SpaceSpec, action: ArraySpec, net: NetConfig) -> None:
        placeholder = Streams(0).generator(Role.CHECKER, 0, purpose=Purpose.INITIALISE)  # overwritten by `follow`
        self._model = make_actor_critic(observation, action, net, placeholder)
        self._observation = observation
        self._parameters = FlatParameters(self._model, trainable=False)
        self._box = action.kind == "box"
        self._state = torch.zeros(0, self._model.state_size)
        self.head = self._model.head
        self.state_size = self._model.state_size
        self.version = -1
        self._standby: _Ready | None = None

    def follow(self, document: Any) -> None:
        """Verify `document` and make its weights live. Raises WireError and keeps the old weights if it is damaged."""
        self._load(self._verified(document))

    def offer(self, document: Any) -> int:
        """Verify `document` and hold its weights ready; returns their version. Callable from another thread.

        Raises WireError, and keeps what was held ready, if it is damaged.
        """
        ready = self._verified(document)
        self._standby = ready
        return ready.weights.header.version

    def swap(self) -> None:
        """Make the weights that are held ready live, if they are newer."""
        standby = self._standby
        if standby is not None and standby.weights.header.version > self.version:
            self._load(standby)

    def _verified(self, document: Any) -> _Ready:
        weights = decode_weights(document, self._parameters.manifest)
        scale = InputScale.from_plain(weights.header.extra, self._observation)
        return _Ready(weights, None if scale is None else InputStage(self._observation, scale))

    def _load(self, ready: _Ready) -> None:
        self._parameters.load(ready.weights.flat)
        self._model.input_stage = ready.input_stage
        self.version = ready.weights.header.version

    def begin(self, num_lanes: int) -> None:
        """From here on B = `num_lanes` lanes, each at the beginning of an episode."""
        self._state = torch.zeros(num_lanes, self.state_size)

    def reset(self, lanes: NDArray[np.bool_] | NDArray[np.int64]) -> None:
        """Zero the state of `lanes`, a mask [B] or indices: their next row follows an invalid one."""
        self._state.numpy()[lanes] = 0.0

    def state(self) -> NDArray[np.float32]:
        """The state before the next row, float32 [B, S]; a copy."""
        return self._state.numpy().copy()

    def set_state(self, state: NDArray[np.float32]) -> None:
        """Put back what `state` gave."""
        self._state = torch.from_numpy(state.copy())

    @torch.inference_mode()
    def act(self, observation: Arrays, noise: NDArray[np.float32]) -> Acted:
        """Sample actions for `observation` {part: [B, *shape]} with `noise` [B, *noise_shape]; advances the state."""
        parameters, value, self._state = self._model.step(_tensors(observation), self._state)
        action, log_prob = draw(self.head, parameters, torch.from_numpy(noise))
        return Acted(action.numpy(), log_prob.numpy(), value.numpy())

    @torch.inference_mode()
    def values(self, observation: Arrays, lanes: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """Values float32 [N] of observations of all lanes, or of those that `lanes` [N] names; the state stays."""
        state = self._state if lanes is None or not self.state_size else self._state[torch.from_numpy(lanes)]
        value: NDArray[np.float32] = self._model.step(_tensors(observation), state)[1].numpy()
        return value

    @torch.inference_mode()
    def greedy(self, observation: Arrays) -> NDArray[Any]:
        """Most probable actions, stored form [B, *shape]; advances the state."""
        parameters, _, self._state = self._model.step(_tensors(observation), self._state)
        action: NDArray[Any] = self.head.mode(parameters).numpy()
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
