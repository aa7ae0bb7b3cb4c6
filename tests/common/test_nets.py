"""Networks: what fits which space, where the first weights come from, what is refused before an actor starts."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from common.cores import Core
from common.errors import ConfigError
from common.nets import ActorCritic, NetConfig, RecurrentBody, SeparateTowers, SharedTorso, make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from common.specs import ArraySpec, SpaceSpec
from tests.support import box, discrete, multi_discrete, space

VECTOR = space(obs=box(4))


def image(*shape: int) -> SpaceSpec:
    """One uint8 image."""
    return space(obs=box(*shape, dtype="uint8", low=0.0, high=255.0))


def make(observation: SpaceSpec = VECTOR, action: ArraySpec | None = None, *, seed: int = 7, **net: Any) -> ActorCritic:
    """A network drawn from the INITIALISE stream of `seed`."""
    generator = Streams(seed).generator(Role.LEARNER, 0, purpose=Purpose.INITIALISE)
    return make_actor_critic(observation, action or discrete(3), NetConfig(**net), generator)


def flat(model: ActorCritic) -> bytes:
    """All parameters, bit by bit."""
    return FlatParameters(model, trainable=False).numpy().tobytes()


# ── shapes ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("shape", "features"), [((36, 36, 1), 64), ((84, 84, 4), 3136), ((4, 84, 84), 3136), ((3, 36, 48), 128)]
)
def test_the_nature_cnn_fits_the_smallest_and_the_usual_image(shape: tuple[int, ...], features: int) -> None:
    """Channels first or last, told apart by size; 84 x 84 gives the 64 x 7 x 7 = 3,136 features of the paper."""
    model = make(image(*shape), hidden=(16,))
    assert isinstance(model.body, SharedTorso)
    assert model.body.features.width == features
    parameters, value = model({"obs": torch.zeros(5, *shape, dtype=torch.uint8)})
    assert (parameters.shape, value.shape) == ((5, 3), (5,))


def test_channels_first_and_last_are_one_image() -> None:
    """The same weights see the same pixels in either order: nothing is reshaped where it should be transposed."""
    pixels = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (2, 36, 40, 3), dtype=np.uint8))
    last, first = make(image(36, 40, 3), hidden=(8,)), make(image(3, 36, 40), hidden=(8,))
    assert flat(last) == flat(first)
    for a, b in zip(last({"obs": pixels}), first({"obs": pixels.permute(0, 3, 1, 2).contiguous()}), strict=True):
        assert torch.allclose(a, b, atol=1e-6)


def test_an_image_of_unclear_order_is_refused_until_the_user_says() -> None:
    """C04: (3, 3, 3) or (64, 64, 64) cannot be guessed."""
    for shape in ((3, 3, 3), (64, 64, 64)):
        with pytest.raises(ConfigError, match=r"cannot tell where its channels are.*say net.channels"):
            make(image(*shape))
    model = make(image(64, 64, 64), channels="first", hidden=(8,))
    assert isinstance(model.body, SharedTorso)


def test_a_small_image_gets_an_mlp_by_default_and_a_refusal_when_a_cnn_is_asked_for() -> None:
    """35 pixels are one too few for three convolutions."""
    assert isinstance(make(image(35, 84, 3)).body, SeparateTowers)
    with pytest.raises(ConfigError, match=r"too small for nature_cnn; got 35 x 84; allowed: at least 36 x 36"):
        make(image(35, 84, 3), kind="nature_cnn")


def test_a_cnn_without_an_image_is_refused() -> None:
    """The message shows what the observation is."""
    for kind in ("nature_cnn", "impala_resnet"):
        with pytest.raises(ConfigError, match=rf"{kind} needs an image; got \{{'obs': 'float32\(4,\)'\}}"):
            make(kind=kind)


def test_the_impala_network_takes_small_images_and_large_ones() -> None:
    """The features of the paper, 3,872 of 84 x 84, and one shared layer; an image too small for nature_cnn fits."""
    model = make(image(4, 84, 84), kind="impala_resnet", hidden=(256,))
    assert isinstance(model.body, SharedTorso)
    assert (model.body.features.width, model.body.hidden.out_features) == (3872, 256)
    parameters, value = make(image(8, 8, 3), kind="impala_resnet")({"obs": torch.zeros(5, 8, 8, 3, dtype=torch.uint8)})
    assert (parameters.shape, value.shape) == ((5, 3), (5,))


@pytest.mark.parametrize("hidden", [(), (0,), (64, -1)])
def test_layers_need_units(hidden: tuple[int, ...]) -> None:
    """Refused where it is configured."""
    with pytest.raises(ConfigError, match=r"net\.hidden"):
        NetConfig(hidden=hidden)


def test_every_part_of_an_observation_is_seen() -> None:
    """Parts side by side in the spec's order: floats as they are, choices one-hot, bytes of full range over 255."""
    observation = SpaceSpec(
        parts=(
            ("obs/flag", ArraySpec(kind="multi_binary", shape=(2,), dtype="int8")),
            ("obs/gear", discrete(3, start=5)),
            ("obs/dice", multi_discrete(2, 2)),
            ("obs/pixel", box(2, dtype="uint8", low=0.0, high=255.0)),
            ("obs/count", box(dtype="uint16")),
        )
    )
    model = make(observation)
    rows = {
        "obs/flag": torch.tensor([[1, 0]], dtype=torch.int8),
        "obs/gear": torch.tensor([2]),
        "obs/dice": torch.tensor([[1, 0]]),
        "obs/pixel": torch.tensor([[255, 51]], dtype=torch.uint8),
        "obs/count": torch.tensor([40_000], dtype=torch.uint16),
    }
    body = model.body
    assert isinstance(body, SeparateTowers)
    got = body.features(rows)
    assert torch.allclose(got, torch.tensor([[1, 0, 0, 0, 1, 0, 1, 1, 0, 1, 0.2, 40_000]]))


def test_an_image_beside_a_vector_is_convolved() -> None:
    """Both reach the shared layer."""
    observation = SpaceSpec(parts=(("obs/camera", image(36, 36, 3)["obs"]), ("obs/speed", box(2))))
    model = make(observation, hidden=(8,))
    assert isinstance(model.body, SharedTorso)
    assert model.body.features.width == 64 + 2


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("core", "state_size"), [("none", 0), ("gru", 6), ("lstm", 12)])
@pytest.mark.parametrize("observation", [VECTOR, image(36, 36, 3)])
def test_an_unroll_is_its_steps(observation: SpaceSpec, core: str, state_size: int) -> None:
    """Head parameters, values and the last state, row by row, for every network; memory is lost where it is told."""
    model = make(observation, core=core, core_size=6, hidden=(8,))
    assert model.state_size == NetConfig(core=core, core_size=6).state_size == state_size  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    spec = observation["obs"]
    rows = (torch.rand((4, 2, *spec.shape), generator=generator) * 255).to(getattr(torch, spec.dtype))
    state = torch.randn((2, state_size), generator=generator)
    valid_before = torch.tensor([[1, 1], [1, 1], [0, 1], [1, 0]], dtype=torch.uint8)
    parameters, value, last = model.unroll({"obs": rows}, state, valid_before)
    assert (parameters.shape, value.shape, last.shape) == ((4, 2, 3), (4, 2), (2, state_size))
    for t in range(4):
        state = torch.where(valid_before[t].unsqueeze(1) == 0, torch.zeros_like(state), state)
        stepped = model.step({"obs": rows[t]}, state)
        state = stepped[2]
        for ours, other in zip((parameters[t], value[t]), stepped[:2], strict=True):
            torch.testing.assert_close(ours, other, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(last, state, rtol=1e-5, atol=1e-6)


def test_a_network_that_remembers_is_what_the_config_says() -> None:
    """Every hidden layer and its activation, then the core; of an image's layers the last, as without a core."""
    vector, camera = make(core="gru", hidden=(16, 8)).body, make(image(36, 36, 3), core="gru", hidden=(16, 8)).body
    assert isinstance(vector, RecurrentBody) and isinstance(camera, RecurrentBody)
    assert [layer.out_features for layer in vector.hidden.layers] == [16, 8]  # type: ignore[union-attr]
    assert [layer.out_features for layer in camera.hidden.layers] == [8]  # type: ignore[union-attr]
    features = torch.randn((5, 4), generator=torch.Generator().manual_seed(1))
    layers: Any = vector.hidden.layers
    torch.testing.assert_close(vector.hidden(features), layers[1](layers[0](features).tanh()).tanh())
    assert (camera.hidden(torch.ones(2, 64)) >= 0).all()


def test_a_network_that_remembers_does_not_run_without_its_state() -> None:
    """A pass that silently forgot would train something else than what acts."""
    with pytest.raises(AssertionError, match="use step or unroll"):
        make(core="lstm")({"obs": torch.zeros(1, 4)})


def test_a_core_and_a_network_of_ones_own_exclude_one_another() -> None:
    """Its forward pass keeps no state: refused where it is configured. So is a core without units."""
    with pytest.raises(ConfigError, match=r"exclude one another; got factory 'a:b', core 'gru'; allowed: core 'none'"):
        NetConfig(factory="a:b", core="gru")
    with pytest.raises(ConfigError, match=r"net\.core_size; got 0; allowed: at least 1 unit"):
        NetConfig(core="gru", core_size=0)


# ── initial weights ──────────────────────────────────────────────────────────────────────────────────────────────


def linears(model: ActorCritic) -> dict[str, nn.Linear | nn.Conv2d]:
    """Every layer with weights, by name."""
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}


@pytest.mark.parametrize(("observation", "hidden"), [(VECTOR, (64, 16)), (image(36, 36, 3), (32,))])
def test_initial_weights_are_orthogonal_and_biases_zero(observation: SpaceSpec, hidden: tuple[int, ...]) -> None:
    """W Wᵀ (or Wᵀ W) is gain² I: √2 for hidden layers, 0.01 for the policy's last layer, 1 for the value's."""
    layers = linears(make(observation, hidden=hidden))
    last = {"policy": 0.01, "value": 1.0}
    ends = {[name for name in layers if name.startswith(f"body.{tower}")][-1]: gain for tower, gain in last.items()}
    for name, layer in layers.items():
        matrix = layer.weight.detach().flatten(1).double()
        gram = matrix @ matrix.T if len(matrix) <= matrix.shape[1] else matrix.T @ matrix
        gain = ends.get(name, math.sqrt(2.0))
        assert torch.allclose(gram, gain**2 * torch.eye(len(gram), dtype=torch.float64), atol=1e-6), name
        assert layer.bias is not None and not layer.bias.any(), name


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_each_gate_of_a_core_is_orthogonal_by_itself(kind: str) -> None:
    """W W^T (or W^T W) is I for input and state; biases are zero, but 1 where state is kept; heads as ever."""
    model = make(core=kind, core_size=16, hidden=(8,))
    core = next(module for module in model.modules() if isinstance(module, Core))
    for weight in (core.input_weight, core.recurrent_weight):
        for gate in weight.detach().double().split(16):
            gram = gate @ gate.T if gate.shape[0] <= gate.shape[1] else gate.T @ gate
            torch.testing.assert_close(gram, torch.eye(len(gram), dtype=torch.float64), rtol=0, atol=1e-6)
    gates = core.bias.detach().reshape(core.num_gates, 16)
    assert [set(gate.tolist()) for gate in gates] == [{0.0}, {1.0}, *[{0.0}] * len(gates[2:])]
    gram = linears(model)["body.policy"].weight.detach() @ linears(model)["body.policy"].weight.detach().T
    torch.testing.assert_close(gram, 1e-4 * torch.eye(3), rtol=0, atol=1e-8)


def test_a_fresh_policy_is_close_to_uniform() -> None:
    """The small last layer: no action is preferred before the first update."""
    parameters, _ = make()({"obs": torch.from_numpy(np.random.default_rng(0).standard_normal((64, 4), np.float32))})
    assert (parameters.softmax(-1) - 1 / 3).abs().max() < 0.02


def test_the_same_seed_gives_the_same_bits_and_another_seed_others() -> None:
    """Weights are a function of the INITIALISE stream alone."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        first = flat(make())
        torch.manual_seed(2)
        assert flat(make()) == first
    assert flat(make(seed=8)) != first


def test_the_global_generator_is_left_alone() -> None:
    """Building a network draws nothing that anybody else would have drawn."""
    before = torch.default_generator.get_state()
    make(image(36, 36, 3))
    assert torch.equal(torch.default_generator.get_state(), before)


# ── a network of the user's own ──────────────────────────────────────────────────────────────────────────────────


class Own(nn.Module):
    """Two linear layers with torch's own initial weights."""

    def __init__(self, observation: SpaceSpec, action: ArraySpec) -> None:
        super().__init__()
        self.policy = nn.Linear(observation["obs"].size, action.nvec[0])
        self.value = nn.Linear(observation["obs"].size, 1)

    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.policy(rows["obs"]), self.value(rows["obs"]).squeeze(-1)


class WithBuffer(Own):
    def __init__(self, observation: SpaceSpec, action: ArraySpec, *, persistent: bool = True) -> None:
        super().__init__(observation, action)
        self.register_buffer("scale", torch.ones(4), persistent=persistent)


class Tied(Own):
    def __init__(self, observation: SpaceSpec, action: ArraySpec) -> None:
        super().__init__(observation, action)
        self.again = self.policy


class OneOutput(Own):
    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.policy(rows["obs"])  # type: ignore[return-value]


class ValueColumn(Own):
    def forward(self, rows: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.policy(rows["obs"]), self.value(rows["obs"])


class HalfPrecision(Own):
    def __init__(self, observation: SpaceSpec, action: ArraySpec) -> None:
        super().__init__(observation, action)
        self.unused = nn.Parameter(torch.zeros(1, dtype=torch.float16))


@pytest.fixture
def own(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `own_nets` on the path, as a user would have it."""
    module = ModuleType("own_nets")
    monkeypatch.setitem(sys.modules, "own_nets", module)
    kinds = (Own, WithBuffer, Tied, OneOutput, ValueColumn, HalfPrecision)
    for kind in kinds:
        setattr(module, kind.__name__, lambda observation, action, net, kind=kind: kind(observation, action))
    module.constants = lambda observation, action, net: WithBuffer(observation, action, persistent=False)  # type: ignore[attr-defined]
    module.nothing = lambda observation, action, net: None  # type: ignore[attr-defined]
    module.number = 3  # type: ignore[attr-defined]
    return module


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize("name", ["Own", "Tied", "constants"])
def test_a_network_of_ones_own_keeps_its_initial_weights(name: str) -> None:
    """Drawn with torch's generator seeded from the INITIALISE stream: reproducible, and not made orthogonal."""
    model = make(factory=f"own_nets:{name}")
    weights = flat(model)
    assert flat(make(factory=f"own_nets:{name}")) == weights
    assert flat(make(seed=8, factory=f"own_nets:{name}")) != weights
    assert linears(model)["body.policy"].bias.any()


@pytest.mark.usefixtures("own")
@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("own_nets:Missing", "net.factory cannot be imported"),
        ("no_such_module:Own", "net.factory cannot be imported"),
        ("own_nets", "net.factory cannot be imported"),
        (":Own", "net.factory cannot be imported"),
        ("own_nets:number", "net.factory is no function; got 'own_nets:number', <class 'int'>"),
        ("own_nets:nothing", "returned no network"),
        ("own_nets:OneOutput", "does not fit the action space; got [(2, 3)] for 2 rows"),
        ("own_nets:ValueColumn", "got [(2, 3), (2, 1)] for 2 rows; allowed: (parameters (2, 3), value (2,))"),
        ("own_nets:WithBuffer", "holds state outside its parameters; got ['body.scale']"),
        ("own_nets:HalfPrecision", "parameters of another dtype; got {'body.unused': torch.float16}"),
    ],
)
def test_a_network_that_cannot_be_used_is_refused(factory: str, words: str) -> None:
    """Where it is made, in words of the configuration: not in an actor, an hour later."""
    with pytest.raises(ConfigError) as caught:
        make(factory=factory)
    assert words in str(caught.value)
