"""Norms of a gradient by layer group: by hand, whole, and for each kind of network."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from common.metric_labels import LayerGroup
from common.nets import NetConfig, make_actor_critic
from common.parameters import FlatParameters
from common.weights import ParameterManifest
from learner.layer_norms import LayerNorms, layer_group
from tests.support import box, discrete, space


def parameters_of(**net: Any) -> FlatParameters:
    observation = space(obs=box(42, 42, 1, dtype="uint8", low=0, high=255) if net.get("kind") else box(3))
    model = make_actor_critic(observation, discrete(2), NetConfig(**net), np.random.default_rng(0))
    return FlatParameters(model, trainable=True)


def test_norms_by_hand() -> None:
    """A group's parameters need not lie side by side: 3 and 4 of the policy make 5."""
    manifest = ParameterManifest.of(
        [
            ("body.policy.weight", (1,), "float32"),
            ("body.value.weight", (2,), "float32"),
            ("head_module.log_std", (1,), "float32"),
            ("body.something.weight", (1,), "float32"),
        ]
    )
    norms = LayerNorms(manifest).of(torch.tensor([3.0, 6.0, 8.0, -4.0, 0.0]))
    assert norms == {"policy": 5.0, "value": 10.0, "other": 0.0}


@pytest.mark.parametrize(
    ("net", "groups"),
    [
        ({}, "policy value"),
        ({"kind": "nature_cnn"}, "torso policy value"),
        ({"kind": "impala_resnet"}, "torso policy value"),
        ({"core": "lstm"}, "torso core policy value"),
        ({"core": "gru"}, "torso core policy value"),
    ],
    ids=str,
)
def test_the_groups_of_a_network_make_up_the_whole(net: dict[str, Any], groups: str) -> None:
    """Every parameter of ours belongs to a group with a name, and all groups together have the norm of all."""
    parameters = parameters_of(**net)
    gradient = torch.from_numpy(np.random.default_rng(1).normal(size=parameters.num_elements).astype(np.float32))
    norms = LayerNorms(parameters.manifest).of(gradient)
    assert set(norms) == set(groups.split())
    assert math.hypot(*norms.values()) == pytest.approx(torch.linalg.vector_norm(gradient).item(), rel=1e-5)


def test_the_gradient_is_only_looked_at() -> None:
    """Not a bit of it is changed, and a number that is not finite is told by its group."""
    parameters = parameters_of()
    gradient = torch.ones(parameters.num_elements)
    value = next(entry for entry in parameters.manifest.entries if entry.name.startswith("body.value"))
    gradient[value.offset] = math.nan
    before = gradient.numpy().tobytes()
    norms = LayerNorms(parameters.manifest).of(gradient)
    assert gradient.numpy().tobytes() == before
    assert math.isnan(norms["value"]) and math.isfinite(norms["policy"])


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("body.features.parts.0.conv1.weight", LayerGroup.TORSO),
        ("body.hidden.layers.0.bias", LayerGroup.TORSO),
        ("body.core.input.weight", LayerGroup.CORE),
        ("head_module.log_std", LayerGroup.POLICY),
        ("body.policy_extra.weight", LayerGroup.OTHER),
        ("body.encoder.weight", LayerGroup.OTHER),
        ("weight", LayerGroup.OTHER),
    ],
)
def test_names_are_taken_whole(name: str, group: LayerGroup) -> None:
    """A name that merely begins like one of ours is the user's own."""
    assert layer_group(name) is group
