"""The plain peer is an opponent: it learns, and its arithmetic is right."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch

from benchmarks.peers.plain_ppo import Collection, PlainPPO, advantages
from benchmarks.peers.setting import DISCOUNT, GAE_LAMBDA, Setting
from common.process import intra_op_threads


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """More threads are slower on tensors this small, and far slower on a busy machine."""
    with intra_op_threads(1):
        yield


def collection(*, terminated: list[bool], truncated: list[bool], valid: list[bool]) -> Collection:
    """One lane, reward 1 a row."""
    column = np.array([terminated, truncated, valid]).T[:, :, None]
    rows = len(valid)
    nothing = torch.zeros((rows, 1))
    return Collection(
        observation=torch.zeros((rows + 1, 1, 1)),
        action=nothing.long(),
        log_prob=nothing,
        reward=np.ones((rows, 1), np.float32),
        terminated=column[:, 0],
        truncated=column[:, 1],
        valid=column[:, 2],
    )


def test_advantages_by_hand() -> None:
    """Three rows that go on: each error is 1 + 0.99 * 2 - 2 = 0.98, decayed by 0.99 * 0.95 from the end."""
    kept = collection(terminated=[False] * 3, truncated=[False] * 3, valid=[True] * 3)
    decay = DISCOUNT * GAE_LAMBDA
    expected = [0.98 * (1 + decay + decay**2), 0.98 * (1 + decay), 0.98]
    assert advantages(kept, np.full((4, 1), 2.0, np.float32))[:, 0] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("terminated", "error"), [(True, 1.0 - 2.0), (False, 1.0 + DISCOUNT * 5.0 - 2.0)])
def test_nothing_flows_back_over_an_episodes_end(terminated: bool, error: float) -> None:
    """The last row of an episode stands alone: bootstrapped from its true next observation only if truncated."""
    ends = [True, False, False]
    kept = collection(
        terminated=ends if terminated else [False] * 3,
        truncated=[False] * 3 if terminated else ends,
        valid=[True, False, True],
    )
    value = np.array([[2.0], [5.0], [700.0], [0.0]], np.float32)
    assert advantages(kept, value)[0, 0] == pytest.approx(error, rel=1e-6)


def test_reset_rows_are_no_steps() -> None:
    """An update counts lanes x rows less one row for each reset that fell into it."""
    peer = PlainPPO(Setting(lanes=8, rows=64, minibatch=128), seed=1)
    try:
        steps = peer.update()
        pending = int(peer._ended.sum())  # episodes that ended in the last row: their resets are still to come
        assert peer.episodes > pending
        assert steps == 8 * 64 - (peer.episodes - pending)
    finally:
        peer.close()


def test_learns() -> None:
    """Episodes get more than three times as long in 32,000 steps."""
    peer = PlainPPO(Setting(lanes=16, rows=128, minibatch=256), seed=1)
    try:
        lengths = []
        for _ in range(16):
            before = peer.episodes
            lengths.append(peer.update() / max(1, peer.episodes - before))
    finally:
        peer.close()
    assert np.mean(lengths[-3:]) > 3.0 * lengths[0]
