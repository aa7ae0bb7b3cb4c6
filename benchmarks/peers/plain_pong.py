"""The plain opponent for Pong: an actor-critic in one process, in PyTorch alone, over ALE's vector environment.

    python -m benchmarks.peers.plain_pong --actors 2 --lanes 32 --rows 16 [--threads 1] [--bfloat16]

One file to be read top to bottom, in the manner of CleanRL (Huang et al., 2022). It steps the lanes of all actors,
collects and learns in turn, passes over a collection once and makes one gradient step of it. On its own latest policy
V-trace is the sum of n-step returns, so the arithmetic is that of the others. What a careful author would do is done:
one network pass a tick, images as bytes until the network reads them, channels innermost in memory where the backward
pass is faster by it, preallocated buffers, fused Adam. `--bfloat16` computes layers in 16 bits.

Legend: T rows, B lanes, N = T x B.
"""

# mypy: disable-error-code="import-not-found, import-untyped"
from __future__ import annotations

import sys
from typing import Any

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.peers import impala_setting as work
from benchmarks.peers.impala_setting import PONG, ImpalaOrder, ImpalaSetting, impala_parser, parse_impala_order
from benchmarks.peers.setting import EXIT_NOT_INSTALLED
from benchmarks.rates import measure
from common.clock import MonotonicClock
from common.process import keep_freed_memory

try:
    import ale_py
except ImportError as error:
    print(f"ale_py cannot be imported ({error}); install truestep[atari]", file=sys.stderr)
    sys.exit(EXIT_NOT_INSTALLED)


class Agent(nn.Module):
    """The convolutions of Mnih et al. (2015), one hidden layer, policy and value on top of it."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            *(nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU()),
            *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 7 * 7, work.FEATURES), nn.ReLU()),
        )
        self.policy = nn.Linear(work.FEATURES, num_actions)
        self.value = nn.Linear(work.FEATURES, 1)

    def forward(self, image: Tensor) -> tuple[Tensor, Tensor]:
        """uint8 [N, 4, 84, 84] to logits [N, A] and values [N], float32."""
        x = image.to(torch.float32, memory_format=torch.channels_last).mul_(1.0 / 255.0)
        features = self.torso(x)
        return self.policy(features).float(), self.value(features)[:, 0].float()


class PlainActorCritic:
    """Collects and learns in turn; `update()` does both once."""

    def __init__(self, setting: ImpalaSetting, *, threads: int, bfloat16: bool, seed: int) -> None:
        torch.manual_seed(seed)
        self._cast = torch.autocast("cpu", torch.bfloat16, enabled=bfloat16)
        gymnasium.register_envs(ale_py)
        make_vec: Any = gymnasium.make_vec
        lanes = setting.actors * setting.lanes
        self._envs = make_vec(PONG, num_envs=lanes, vectorization_mode="vector_entry_point", num_threads=threads)
        self._agent = Agent(int(self._envs.single_action_space.n))
        for convolution in (each for each in self._agent.torso if isinstance(each, nn.Conv2d)):
            convolution.weight.data = convolution.weight.data.contiguous(memory_format=torch.channels_last)
        self._adam = torch.optim.Adam(
            self._agent.parameters(), lr=work.LEARNING_RATE, eps=work.ADAM_EPSILON, fused=True
        )
        rows_lanes = (setting.rows, lanes)
        self._observation = torch.empty(
            (setting.rows + 1, lanes, *self._envs.single_observation_space.shape), dtype=torch.uint8
        )
        self._action = torch.empty(rows_lanes, dtype=torch.int64)
        self._reward = np.empty(rows_lanes, np.float32)
        self._terminated = np.empty(rows_lanes, np.bool_)
        self._truncated = np.empty(rows_lanes, np.bool_)
        self._valid = np.empty(rows_lanes, np.bool_)
        self._ended = np.zeros(lanes, np.bool_)  # lanes whose next step is a reset
        self._observation[-1] = torch.from_numpy(self._envs.reset(seed=seed)[0])

    def update(self) -> int:
        """One collection and one pass over it; returns the transitions trained on."""
        self._collect()
        self._learn(torch.from_numpy(self._valid.astype(np.float32)))
        return int(self._valid.sum())

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()

    @torch.no_grad()
    def _collect(self) -> None:
        self._observation[0] = self._observation[-1]
        for t in range(len(self._reward)):
            with self._cast:
                logits, _ = self._agent(self._observation[t])
            action = self._action[t] = torch.multinomial(logits.softmax(-1), 1)[:, 0]
            np.logical_not(self._ended, out=self._valid[t])
            found, self._reward[t], self._terminated[t], self._truncated[t], _ = self._envs.step(action.numpy())
            self._ended = self._terminated[t] | self._truncated[t]
            self._observation[t + 1] = torch.from_numpy(found)

    def _learn(self, valid: Tensor) -> None:
        with self._cast:
            logits, value = self._agent(self._observation.flatten(0, 1))
        value = value.view(len(self._observation), -1)
        log_probs = logits.view(*value.shape, -1)[:-1].log_softmax(-1)
        target = torch.from_numpy(self._returns(value.detach().numpy()))
        count = valid.sum()
        taken = log_probs.gather(-1, self._action[..., None])[..., 0]
        policy_loss = -(taken * (target - value[:-1].detach()) * valid).sum() / count
        value_loss = 0.5 * ((value[:-1] - target).square() * valid).sum() / count
        entropy = -((log_probs.exp() * log_probs).sum(-1) * valid).sum() / count
        self._adam.zero_grad(set_to_none=True)
        (policy_loss + work.VALUE_COEFFICIENT * value_loss - work.ENTROPY_COEFFICIENT * entropy).backward()
        nn.utils.clip_grad_norm_(self._agent.parameters(), work.MAX_GRADIENT_NORM)
        self._adam.step()

    def _returns(self, value: NDArray[np.float32]) -> NDArray[np.float32]:
        """Discounted rewards [T, B] to the end of the episode or of the collection, bootstrapped unless terminated."""
        return n_step_returns(self._reward, value, self._terminated, self._truncated | ~self._valid)


def n_step_returns(
    reward: NDArray[np.float32], value: NDArray[np.float32], terminated: NDArray[np.bool_], cut: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """Returns [T, B] of rewards [T, B] and values [T + 1, B]; behind a `cut` row stands the value only."""
    result = np.empty_like(reward)
    following = value[-1]
    for t in reversed(range(len(reward))):
        ahead = np.where(cut[t], value[t + 1], following) * ~terminated[t]
        following = result[t] = reward[t] + work.DISCOUNT * ahead
    return result


def run(order: ImpalaOrder, *, bfloat16: bool) -> str:
    """Train, measure, and give the reading as a line."""
    keep_freed_memory()
    torch.set_num_threads(order.threads)
    peer = PlainActorCritic(order.setting, threads=order.threads, bfloat16=bfloat16, seed=order.seed)
    try:
        return measure(peer.update, MonotonicClock(), warmup_s=order.warmup_s, seconds=order.seconds).line()
    finally:
        peer.close()


def main() -> None:
    parser = impala_parser("Plain single-process actor-critic on Pong.")
    parser.add_argument("--bfloat16", action="store_true", help="layers in 16 bits")
    parser.set_defaults(env=PONG)
    order, own = parse_impala_order(parser)
    if order.setting.env != PONG:
        parser.error(f"--env: got {order.setting.env}, allowed: {PONG}")
    print(run(order, bfloat16=own.bfloat16))


if __name__ == "__main__":
    main()
