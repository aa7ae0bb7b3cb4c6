"""Policy and value networks: one definition for acting and for learning.

    observation parts ──► (input stage) ──► features ──► policy tower ──► head parameters [N, P]
                                               │
                                               └───────► value tower ───► value [N]

    the same with a core: features ──► hidden layers ──► LSTM or GRU ──► both heads, linear

Vector features feed separate policy and value towers (their gradients do not compete, Andrychowicz et al., 2021,
section 3.2); image features share the convolutions of Mnih et al., 2015 ("Nature CNN"), or of Espeholt et al., 2018
("IMPALA"). Weights are drawn orthogonally from the run's own INITIALISE stream, biases are zero (1 in the gate by which
a core keeps its state), the policy's last layer is scaled to 0.01. A network of the user's own keeps its own initial
values, drawn with torch's global generator seeded from the same stream.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from common.cores import Core, make_core
from common.distributions import ActionHead, make_head
from common.errors import ConfigError
from common.input_stage import InputStage
from common.rng import torch_seeded
from common.specs import ArraySpec, SpaceSpec
from common.torsos import Features, Observation, TorsoKind, fits_nature_cnn
from common.towers import Activation, Tower


@dataclass(frozen=True, slots=True, kw_only=True)
class NetConfig:
    """Which network.

    Attributes:
        kind: auto = nature_cnn where an observation part is an image, else mlp. impala_resnet: 15 convolutions, for
            images of any size.
        hidden: units of each hidden layer of a tower (mlp), or of the layer after the convolutions (last entry; the
            papers have 512 after nature_cnn, 256 after impala_resnet).
        activation: of the hidden layers; after convolutions it is always relu.
        channels: where an image keeps its channels; auto decides by size and refuses what is ambiguous.
        squash: squashed instead of clipped Gaussian for continuous actions.
        initial_log_std: log standard deviation of continuous actions before training.
        core: a recurrent layer between hidden layers and heads, which policy and value then share.
        core_size: its units.
        factory: "module:function" that builds a network of the user's own; called as
            `factory(observation: SpaceSpec, action: ArraySpec, net: NetConfig) -> nn.Module` whose forward maps
            {part: tensor [N, *shape]} to (head parameters [N, P], value [N]). Replaces `kind`; takes no core.
    """

    kind: Literal["auto", "mlp", "nature_cnn", "impala_resnet"] = "auto"
    hidden: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    channels: Literal["auto", "first", "last"] = "auto"
    squash: bool = False
    initial_log_std: float = 0.0
    core: Literal["none", "lstm", "gru"] = "none"
    core_size: int = 128
    factory: str = ""

    def __post_init__(self) -> None:
        if not self.hidden or any(units < 1 for units in self.hidden):
            raise ConfigError("net.hidden", got=self.hidden, allowed="one or more layers of at least 1 unit")
        if self.core_size < 1:
            raise ConfigError("net.core_size", got=self.core_size, allowed="at least 1 unit")
        if self.factory and self.core != "none":
            raise ConfigError(
                "net.factory and net.core exclude one another",
                got=f"factory {self.factory!r}, core {self.core!r}",
                allowed="core 'none' with a network of your own: its forward pass has no state to keep",
            )

    @property
    def state_size(self) -> int:
        """S, numbers of recurrent state of a lane: 0 without a core, H for a GRU, 2H for an LSTM."""
        return {"none": 0, "gru": 1, "lstm": 2}[self.core] * self.core_size


class SeparateTowers(nn.Module):
    """Two towers over the features: no weight is shared between policy and value."""

    def __init__(self, features: Features, num_parameters: int, net: NetConfig) -> None:
        super().__init__()
        self.features = features
        self.policy = Tower(features.width, net.hidden, num_parameters, net.activation)
        self.value = Tower(features.width, net.hidden, 1, net.activation)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        features = self.features(observation)
        return self.policy(features), self.value(features).squeeze(-1)


class SharedTorso(nn.Module):
    """One hidden layer over (convolutional) features, shared by policy and value."""

    def __init__(self, features: Features, num_parameters: int, net: NetConfig) -> None:
        super().__init__()
        self.features = features
        self.hidden = nn.Linear(features.width, net.hidden[-1])
        self.policy = nn.Linear(net.hidden[-1], num_parameters)
        self.value = nn.Linear(net.hidden[-1], 1)

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        hidden = F.relu(self.hidden(self.features(observation)))
        return self.policy(hidden), self.value(hidden).squeeze(-1)


class HiddenLayers(nn.Module):
    """Linear layers, each followed by its activation: [N, width] to [N, hidden[-1]]."""

    def __init__(self, width: int, hidden: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise((width, *hidden)))
        self.activation = torch.tanh if activation == "tanh" else torch.relu

    def forward(self, features: Tensor) -> Tensor:
        for layer in self.layers:
            features = self.activation(layer(features))
        return features


class RecurrentBody(nn.Module):
    """Hidden layers over the features, a core, and linear heads on its output."""

    def __init__(self, features: Features, hidden: HiddenLayers, num_parameters: int, net: NetConfig) -> None:
        super().__init__()
        assert net.core != "none"
        self.features = features
        self.hidden = hidden
        self.core = make_core(net.core, net.hidden[-1], net.core_size)
        self.policy = nn.Linear(net.core_size, num_parameters)
        self.value = nn.Linear(net.core_size, 1)

    def step(self, observation: Observation, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        output, state = self.core.step(self.hidden(self.features(observation)), state)
        return self.policy(output), self.value(output).squeeze(-1), state

    def unroll(self, observation: Observation, state: Tensor, valid_before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows: Tensor = self.hidden(self.features(_rows(observation)))
        output, state = self.core.unroll(rows.view(*valid_before.shape, -1), state, valid_before)
        return self.policy(output), self.value(output).squeeze(-1), state


class ActorCritic(nn.Module):
    """A policy head and a value over one network; what actors run and learners train.

    Three ways through it, of the same numbers for the same rows up to rounding:

        forward(observation [N, ...])                            feed-forward networks only
        step(observation [B, ...], state [B, S])                 one tick of B lanes
        unroll(observation [T, B, ...], state, valid_before)     T rows of B lanes

    Attributes:
        state_size: S, numbers of recurrent state of a lane; 0 where the network is feed-forward. A state of zeros
            begins an episode.
        input_stage: what observations go through first; None where the body sees them as they are. Whoever gives the
            network the parameters of a version gives it that version's statistics.
    """

    def __init__(self, body: nn.Module, head: nn.Module, *, state_size: int = 0) -> None:
        super().__init__()
        self.body = body
        self.head_module = head
        self.state_size = state_size
        self.input_stage: InputStage | None = None
        self._narrow = False

    @property
    def head(self) -> ActionHead:
        """The action head: sampling, log-probabilities, the environment's form of an action."""
        return cast(ActionHead, self.head_module)

    def compute_in(self, precision: str) -> None:
        """Make matrix products and convolutions in "float32" or "bfloat16" from now on. Parameters, what comes out and
        gradients of parameters are float32 in any case.

        Raises:
            ConfigError: bfloat16 for a network that it brings nothing, or too much rounding.
        """
        if precision == "bfloat16" and isinstance(self.body, SeparateTowers | RecurrentBody):
            raise ConfigError(
                "learner.precision: only convolutional networks, and those of net.factory, are computed in bfloat16",
                got="a recurrent core" if self.state_size else "net.kind = mlp",
                allowed="float32",
            )
        self._narrow = precision == "bfloat16"

    def forward(self, observation: Observation) -> tuple[Tensor, Tensor]:
        """{part: [N, *shape]} to head parameters [N, P] and values [N]."""
        assert not self.state_size, "a recurrent network needs its state: use step or unroll"
        return self._through_body(self._seen(observation))

    def step(self, observation: Observation, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """{part: [B, *shape]} and the state before it [B, S] to head parameters [B, P], values [B], the state after."""
        observation = self._seen(observation)
        if self.state_size:
            parameters, value, state = cast(RecurrentBody, self.body).step(observation, state)
        else:
            parameters, value = self._through_body(observation)
        return parameters, value, state

    def unroll(self, observation: Observation, state: Tensor, valid_before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """{part: [T, B, *shape]} to head parameters [T, B, P], values [T, B] and the state after the last row [B, S].

        Args:
            state: [B, S], before row 0.
            valid_before: [T, B], any dtype; where it is 0 the state is zeroed before the row. Of a fragment: 1 for
                row 0, and `valid[t - 1]` for row t, so the state is lost after an invalid row and not before it.
        """
        observation = self._seen(observation)
        if self.state_size:
            return cast(RecurrentBody, self.body).unroll(observation, state, valid_before)
        parameters, value = self._through_body(_rows(observation))
        num_rows, num_lanes = valid_before.shape
        return parameters.reshape(num_rows, num_lanes, -1), value.reshape(num_rows, num_lanes), state

    def _through_body(self, observation: Observation) -> tuple[Tensor, Tensor]:
        if not self._narrow:
            parameters, value = self.body(observation)
            return parameters, value
        device = next(iter(observation.values())).device.type
        with torch.autocast(device, dtype=torch.bfloat16):
            parameters, value = self.body(observation)
        return parameters.float(), value.float()

    def _seen(self, observation: Observation) -> Observation:
        return observation if self.input_stage is None else self.input_stage(observation)


def _rows(observation: Observation) -> dict[str, Tensor]:
    """{part: [T, B, ...]} as {part: [T * B, ...]}."""
    return {name: part.flatten(0, 1) for name, part in observation.items()}


def make_actor_critic(
    observation: SpaceSpec, action: ArraySpec, net: NetConfig, generator: np.random.Generator
) -> ActorCritic:
    """Build the network with initial weights drawn from `generator`.

    Raises:
        ConfigError: the network does not fit the spaces, or `net.factory` is not usable.
    """
    with torch_seeded(int(generator.integers(2**31))):
        head = make_head(action, squash=net.squash, initial_log_std=net.initial_log_std)
        num_parameters = cast(int, head.num_parameters)
        body = _custom(observation, action, net) if net.factory else _built_in(observation, num_parameters, net)
    model = ActorCritic(body, head, state_size=net.state_size)
    _check_output(model, observation, num_parameters)
    _check_state(model)
    if not net.factory:
        _initialise(model, generator)
    return model


def _built_in(observation: SpaceSpec, num_parameters: int, net: NetConfig) -> nn.Module:
    torso = _torso(observation, net)
    features = Features(observation, torso, net.channels)
    if net.core != "none":
        if torso:
            hidden = HiddenLayers(features.width, net.hidden[-1:], "relu")
        else:
            hidden = HiddenLayers(features.width, net.hidden, net.activation)
        return RecurrentBody(features, hidden, num_parameters, net)
    return (SharedTorso if torso else SeparateTowers)(features, num_parameters, net)


def _torso(observation: SpaceSpec, net: NetConfig) -> TorsoKind | None:
    """What the images of an observation go through. Raises ConfigError where one is asked for and there is no image."""
    if net.kind == "mlp":
        return None
    if net.kind == "auto":
        return "nature_cnn" if fits_nature_cnn(observation, net.channels) else None
    if not any(spec.is_image() for _, spec in observation):
        shapes = {name: f"{spec.dtype}{spec.shape}" for name, spec in observation}
        raise ConfigError(
            f"{net.kind} needs an image", got=shapes, allowed="a uint8 Box of rank 3", fix="use net.kind = 'mlp'"
        )
    return net.kind


def _custom(observation: SpaceSpec, action: ArraySpec, net: NetConfig) -> nn.Module:
    module_name, _, function_name = net.factory.partition(":")
    try:
        factory: Callable[..., Any] = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            "net.factory cannot be imported", got=f"{net.factory!r} ({error})", allowed="'module:function' on the path"
        ) from error
    if not callable(factory):
        raise ConfigError("net.factory is no function", got=f"{net.factory!r}, {type(factory)}", allowed="a function")
    body = factory(observation, action, net)
    if not isinstance(body, nn.Module):
        raise ConfigError(f"net.factory {net.factory!r} returned no network", got=type(body), allowed="torch.nn.Module")
    return body


def _check_output(model: ActorCritic, observation: SpaceSpec, num_parameters: int) -> None:
    """One dry pass over two rows of zeros: a network that does not fit its spaces fails here, not in an actor."""
    rows = {n: torch.zeros((2, *s.shape), dtype=getattr(torch, s.dtype)) for n, s in observation}
    with torch.no_grad():
        output = model.step(rows, torch.zeros(2, model.state_size))[:2] if model.state_size else model.body(rows)
    parts = output if isinstance(output, tuple) else (output,)
    got = [tuple(part.shape) if isinstance(part, Tensor) else type(part).__name__ for part in parts]
    if got != [(2, num_parameters), (2,)]:
        raise ConfigError(
            "network output does not fit the action space",
            got=f"{got} for 2 rows",
            allowed=f"(parameters (2, {num_parameters}), value (2,))",
        )


def _check_state(model: ActorCritic) -> None:
    """Everything that travels is a float32 parameter: one flat vector, one digest."""
    parameters = dict(model.named_parameters(remove_duplicate=False))  # tied weights go by several names
    if buffers := [name for name in model.state_dict() if name not in parameters]:
        raise ConfigError(
            "the network holds state outside its parameters",
            got=buffers,
            allowed="parameters only",
            fix="make constants non-persistent: register_buffer(..., persistent=False)",
        )
    if odd := {name: p.dtype for name, p in parameters.items() if p.dtype != torch.float32}:
        raise ConfigError("network parameters of another dtype", got=odd, allowed="float32")


@torch.no_grad()
def _initialise(model: ActorCritic, generator: np.random.Generator) -> None:
    """Orthogonal weights and zero biases, drawn in the order of the modules."""
    policy_out, value_out = _last_linear(model.body.policy), _last_linear(model.body.value)
    gains = {policy_out: 0.01, value_out: 1.0}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            gain = gains.get(module, math.sqrt(2.0))
            module.weight.copy_(_orthogonal(tuple(module.weight.shape), gain, generator))
            if module.bias is not None:
                module.bias.zero_()
        elif isinstance(module, Core):
            _initialise_core(module, generator)


def _initialise_core(core: Core, generator: np.random.Generator) -> None:
    """Each gate orthogonal by itself; the gate that keeps the state has a bias of 1: little is forgotten at first.

    For an LSTM that is Jozefowicz et al., 2015, section 2.2; a GRU's z plays that part (Tallec and Ollivier, 2018).
    """
    for weight in (core.input_weight, core.recurrent_weight):
        for gate in weight.chunk(core.num_gates):
            gate.copy_(_orthogonal(tuple(gate.shape), 1.0, generator))
    core.bias[core.size : 2 * core.size] = 1.0  # f of i, f, g, o; z of r, z, n


def _last_linear(module: Any) -> nn.Module:
    return [layer for layer in module.modules() if isinstance(layer, nn.Linear)][-1]


def _orthogonal(shape: tuple[int, ...], gain: float, generator: np.random.Generator) -> Tensor:
    """Rows (or columns) orthonormal times `gain` (Saxe et al., 2014), drawn in float64 from the run's own stream."""
    rows, columns = shape[0], math.prod(shape[1:])
    square = torch.from_numpy(generator.standard_normal((max(rows, columns), min(rows, columns))))
    q, r = torch.linalg.qr(square)
    q *= torch.sign(torch.diagonal(r))
    matrix = q if rows >= columns else q.T
    weights: Tensor = (gain * matrix).to(torch.float32).contiguous()
    return weights.reshape(shape)
