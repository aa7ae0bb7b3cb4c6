"""ALE's Pong as RLlib's own convolutional model takes it: channels last and float32. Importing this registers it.

RLlib's model computes on what the environment gives: it neither converts bytes nor moves channels. Its own wrapper for
Atari (`wrap_atari_for_new_api_stack`) gives float32 too, but steps one environment at a time, in Python.
"""

# mypy: disable-error-code="import-not-found, misc, no-untyped-call"
from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers.vector import TransformObservation

from benchmarks.peers.impala_setting import PONG

ENV = "truestep-bench/RllibPong-v0"
PIXELS = (84, 84, 4)


def make_vector(num_envs: int, **options: Any) -> Any:
    """ALE's vector environment; observations [num_envs, 84, 84, 4], -1 to 1."""
    spaces = (gymnasium.spaces.Box(-1.0, 1.0, shape, np.float32) for shape in (PIXELS, (num_envs, *PIXELS)))
    single, batched = spaces
    envs = gymnasium.make_vec(f"ale_py:{PONG}", num_envs=num_envs, vectorization_mode="vector_entry_point", **options)
    return TransformObservation(envs, seen, observation_space=batched, single_observation_space=single)


def seen(pixels: Any) -> Any:
    """uint8 [num_envs, 4, 84, 84] as the model wants it."""
    return np.moveaxis(pixels, 1, -1).astype(np.float32) / 128.0 - 1.0


gymnasium.register(ENV, vector_entry_point=make_vector)
