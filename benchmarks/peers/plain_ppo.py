"""The plain opponent: PPO in one process, in PyTorch alone, written to be fast in the ordinary way.

    python -m benchmarks.peers.plain_ppo --lanes 256 --rows 32 --minibatch 2048 [--threads 1] [--allocator]

One file to be read top to bottom, in the manner of CleanRL (Huang et al., 2022), on CartPole's own vector environment.
What a careful author would do is done: one batched forward a tick, values of a whole collection in one pass after it,
preallocated buffers, one mask for all epochs, fused Adam, nothing read back from a tensor in the inner loop. What
would need another process, another language or a compiler is not.

Legend: T rows, B lanes, N valid rows of a collection, M rows of a minibatch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers import setting as work
from benchmarks.peers.setting import Order, Setting, parse_order
from benchmarks.rates import measure
from common.clock import MonotonicClock
from common.process import keep_freed_memory


@dataclass(frozen=True, slots=True, kw_only=True)
class Collection:
    """What T ticks of B lanes gave.

    Attributes:
        observation: float32 [T + 1, B, 4].
        action: int64 [T, B].
        log_prob: float32 [T, B].
        reward: float32 [T, B].
        terminated, truncated: bool [T, B].
        valid: bool [T, B]; False where the environment ignored the action and reset its lane instead.
    """

    observation: Tensor
    action: Tensor
    log_prob: Tensor
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    valid: NDArray[np.bool_]


class Agent(nn.Module):
    """Separate tanh towers for policy and value."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.policy = _tower(num_inputs, num_actions, gain=0.01)
        self.value = _tower(num_inputs, 1, gain=1.0)


def _tower(width: int, outputs: int, *, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for units in work.HIDDEN:
        layers += [_orthogonal(nn.Linear(width, units), 2.0**0.5), nn.Tanh()]
        width = units
    return nn.Sequential(*layers, _orthogonal(nn.Linear(width, outputs), gain))


def _orthogonal(layer: nn.Linear, gain: float) -> nn.Linear:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class PlainPPO:
    """Collects and learns in turn; `update()` does both once."""

    def __init__(self, setting: Setting, *, seed: int) -> None:
        torch.manual_seed(seed)
        self._setting = setting
        make_vec: Any = gymnasium.make_vec
        self._envs = make_vec(work.ENV, num_envs=setting.lanes, vectorization_mode="vector_entry_point")
        shape: tuple[int, ...] = self._envs.single_observation_space.shape
        self._agent = Agent(shape[0], int(self._envs.single_action_space.n))
        self._adam = torch.optim.Adam(
            self._agent.parameters(), lr=work.LEARNING_RATE, eps=work.ADAM_EPSILON, fused=True
        )
        rows_lanes = (setting.rows, setting.lanes)
        self._collection = Collection(
            observation=torch.empty((setting.rows + 1, setting.lanes, *shape)),
            action=torch.empty(rows_lanes, dtype=torch.int64),
            log_prob=torch.empty(rows_lanes),
            reward=np.empty(rows_lanes, np.float32),
            terminated=np.empty(rows_lanes, np.bool_),
            truncated=np.empty(rows_lanes, np.bool_),
            valid=np.empty(rows_lanes, np.bool_),
        )
        self._observation = torch.from_numpy(self._envs.reset(seed=seed)[0])
        self._ended = np.zeros(setting.lanes, np.bool_)  # lanes whose next step is a reset
        self.episodes = 0

    def update(self) -> int:
        """One collection and all epochs over it; returns the transitions trained on."""
        self._collect()
        valid = self._collection.valid
        self._learn(torch.from_numpy(valid.reshape(-1)))
        return int(valid.sum())

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    @torch.no_grad()
    def _collect(self) -> None:
        kept, observation = self._collection, self._observation
        for t in range(self._setting.rows):
            kept.observation[t] = observation
            log_probs = self._agent.policy(observation).log_softmax(-1)
            action = torch.multinomial(log_probs.exp(), 1)
            kept.action[t] = action[:, 0]
            kept.log_prob[t] = log_probs.gather(1, action)[:, 0]
            np.logical_not(self._ended, out=kept.valid[t])
            found, reward, terminated, truncated, _ = self._envs.step(action[:, 0].numpy())
            kept.reward[t], kept.terminated[t], kept.truncated[t] = reward, terminated, truncated
            self._ended = terminated | truncated
            self.episodes += int(self._ended.sum())
            observation = torch.from_numpy(found)
        kept.observation[-1] = self._observation = observation

    def _learn(self, valid: Tensor) -> None:
        kept = self._collection
        with torch.no_grad():
            value = self._agent.value(kept.observation)[..., 0]
        advantage = torch.from_numpy(advantages(kept, value.numpy()))
        target = advantage + value[:-1]
        columns = [kept.observation[:-1].flatten(0, 1)]
        columns += [column.flatten() for column in (kept.action, kept.log_prob, advantage, target)]
        columns = [column[valid] for column in columns]
        num_valid = len(columns[0])
        for _ in range(work.EPOCHS):
            for index in torch.split(torch.randperm(num_valid), self._setting.minibatch):
                if len(index) > 1:  # a deviation needs two
                    self._step(*(column[index] for column in columns))

    def _step(self, observation: Tensor, action: Tensor, old: Tensor, advantage: Tensor, target: Tensor) -> None:
        log_probs = self._agent.policy(observation).log_softmax(-1)
        ratio = (log_probs.gather(1, action[:, None])[:, 0] - old).exp()
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        clipped = ratio.clamp(1.0 - work.CLIP, 1.0 + work.CLIP)
        policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
        value_loss = 0.5 * (self._agent.value(observation)[:, 0] - target).square().mean()
        self._adam.zero_grad(set_to_none=True)
        (policy_loss + work.VALUE_COEFFICIENT * value_loss).backward()
        nn.utils.clip_grad_norm_(self._agent.parameters(), work.MAX_GRADIENT_NORM)
        self._adam.step()


def advantages(kept: Collection, value: NDArray[np.float32]) -> NDArray[np.float32]:
    """GAE(lambda) [T, B] from values [T + 1, B] (Schulman et al., 2016); what stands on invalid rows is not used."""
    going = ~(kept.terminated | kept.truncated) & kept.valid
    error = kept.reward + work.DISCOUNT * value[1:] * ~kept.terminated - value[:-1]
    decay = (work.DISCOUNT * work.GAE_LAMBDA * going).astype(np.float32)
    result = np.empty_like(error)
    following = np.zeros_like(error[0])
    for t in reversed(range(len(error))):
        following = result[t] = error[t] + decay[t] * following
    return result


def run(order: Order) -> str:
    """Train, measure, and give the reading as a line."""
    if order.allocator and not keep_freed_memory():
        raise SystemExit("--allocator: this C library does not let its allocator be set; allowed: glibc on Linux")
    torch.set_num_threads(order.threads)
    peer = PlainPPO(order.setting, seed=order.seed)
    try:
        return measure(peer.update, MonotonicClock(), warmup_s=order.warmup_s, seconds=order.seconds).line()
    finally:
        peer.close()


if __name__ == "__main__":
    print(run(parse_order("Plain single-process vectorised PPO.")))
