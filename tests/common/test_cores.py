"""Cores: an unroll is its steps, both are torch's own layers, and memory ends where it is told to."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from common.cores import GRU, LSTM, Core, CoreKind, make_core

KINDS: list[CoreKind] = ["lstm", "gru"]
WIDTH, SIZE = 3, 5


def core_of(kind: CoreKind, seed: int = 0) -> Core:
    """A core of large random weights, so that what it remembers shows."""
    core = make_core(kind, WIDTH, SIZE)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in core.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.7)
    return core


def torch_twin(core: Core) -> nn.LSTM | nn.GRU:
    """Torch's layer with the same weights; our one bias is the sum of its two, but for the GRU's candidate."""
    twin = (nn.LSTM if isinstance(core, LSTM) else nn.GRU)(WIDTH, SIZE)
    with torch.no_grad():
        twin.weight_ih_l0.copy_(core.input_weight)
        twin.weight_hh_l0.copy_(core.recurrent_weight)
        twin.bias_ih_l0.copy_(core.bias)
        twin.bias_hh_l0.zero_()
        if isinstance(core, GRU):
            twin.bias_hh_l0[2 * SIZE :] = core.candidate_bias
    return twin


def torch_state(core: Core, state: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """Our [B, S] as torch wants it."""
    if isinstance(core, GRU):
        return state.unsqueeze(0)
    h, c = state.unsqueeze(0).chunk(2, -1)
    return h.contiguous(), c.contiguous()


def inputs(rows: int, lanes: int, core: Core, seed: int = 1) -> tuple[Tensor, Tensor]:
    """Features [T, B, I] and a state [B, S]."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn((rows, lanes, WIDTH), generator=generator)
    return features, torch.randn((lanes, core.state_size), generator=generator)


def step_by_step(core: Core, features: Tensor, state: Tensor, valid_before: Tensor) -> tuple[Tensor, Tensor]:
    """Lane by lane, row by row; a lane whose row before was invalid begins with a new state of zeros."""
    outputs = torch.zeros(*features.shape[:2], SIZE)
    after = []
    for lane in range(features.shape[1]):
        mine = state[lane : lane + 1]
        for t in range(len(features)):
            if valid_before[t, lane] == 0:
                mine = torch.zeros(1, core.state_size)
            output, mine = core.step(features[t, lane : lane + 1], mine)
            outputs[t, lane] = output[0]
        after.append(mine[0])
    return outputs, torch.stack(after)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "lanes"), [(1, 1), (1, 4), (7, 1), (6, 3)])
def test_an_unroll_is_torchs_own_layer(kind: CoreKind, rows: int, lanes: int) -> None:
    """Outputs, last state and every gradient, from a state that is not zero, with copied weights."""
    core = core_of(kind)
    twin = torch_twin(core)
    features, state = (each.requires_grad_() for each in inputs(rows, lanes, core))
    again, state_again = (each.detach().clone().requires_grad_() for each in (features, state))
    outputs, last = core.unroll(features, state, torch.ones(rows, lanes))
    theirs, their_last = twin(again, torch_state(core, state_again))
    joined = their_last if isinstance(their_last, Tensor) else torch.cat(their_last, -1)
    torch.testing.assert_close(outputs, theirs)
    torch.testing.assert_close(last, joined[0])
    wanted = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(2))
    ((outputs - wanted).square().sum() + last.square().sum()).backward()
    ((theirs - wanted).square().sum() + joined.square().sum()).backward()
    pairs = [(features, again), (state, state_again)]
    pairs += [(core.input_weight, twin.weight_ih_l0), (core.recurrent_weight, twin.weight_hh_l0)]
    for ours, other in [*pairs, (core.bias, twin.bias_ih_l0)]:
        assert ours.grad is not None
        torch.testing.assert_close(ours.grad, other.grad, rtol=1e-4, atol=1e-5)
    if isinstance(core, GRU):
        torch.testing.assert_close(core.candidate_bias.grad, twin.bias_hh_l0.grad[2 * SIZE :], rtol=1e-4, atol=1e-5)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), kind=st.sampled_from(KINDS), rows=st.integers(1, 7), lanes=st.integers(1, 4))
def test_an_unroll_is_its_steps(seed: int, kind: CoreKind, rows: int, lanes: int) -> None:
    """With memory lost anywhere, also before row 0: outputs, the state afterwards, and gradients through time."""
    core = core_of(kind, seed)
    features, state = (each.requires_grad_() for each in inputs(rows, lanes, core, seed))
    valid_before = (torch.rand((rows, lanes), generator=torch.Generator().manual_seed(seed)) > 0.3).to(torch.uint8)
    gradients = []
    for way in (core.unroll, lambda *args: step_by_step(core, *args)):
        outputs, last = way(features, state, valid_before)
        scale = torch.arange(1.0, rows + 1).reshape(-1, 1, 1)
        loss = (outputs.square() * scale).sum() + last.sum()
        gradients.append(torch.autograd.grad(loss, [features, state, *core.parameters()], materialize_grads=True))
        gradients[-1] += (outputs, last)
    for ours, stepped in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, stepped, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_ends_before_the_row_that_is_told(kind: CoreKind) -> None:
    """Rows 0 and 1 see the state, row 2 and all later ones are those of a new episode; the other lane's stay."""
    core = core_of(kind)
    features, state = inputs(4, 2, core)
    valid_before = torch.ones(4, 2)
    valid_before[2, 0] = 0
    whole, _ = core.unroll(features, state, torch.ones(4, 2))
    cut, _ = core.unroll(features, state, valid_before)
    anew, _ = core.unroll(features[2:], torch.zeros_like(state), torch.ones(2, 2))
    torch.testing.assert_close(cut[:2], whole[:2], rtol=0, atol=0)
    torch.testing.assert_close(cut[2:, 0], anew[:, 0])
    torch.testing.assert_close(cut[:, 1], whole[:, 1])
    assert (cut[2, 0] - whole[2, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_that_is_not_finite_ends_with_its_episode(kind: CoreKind) -> None:
    """NaN times 0 would be NaN: the state is replaced, and no gradient of the next episode is harmed."""
    core = core_of(kind)
    features, state = inputs(2, 1, core)
    valid_before = torch.tensor([[0.0], [1.0]])
    outputs, last = core.unroll(features, torch.full_like(state, torch.nan), valid_before)
    outputs.sum().backward()
    assert outputs.isfinite().all() and last.isfinite().all()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in core.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_acting_and_learning_compute_the_same_bits(kind: CoreKind) -> None:
    """One row with gradients and without: the same cell."""
    core = core_of(kind)
    features, state = inputs(1, 4, core)
    with torch.inference_mode():
        acting, after = core.step(features[0], state)
    learning, last = core.unroll(features, state, torch.ones(1, 4))
    assert torch.equal(acting, learning[0].detach()) and torch.equal(after, last.detach())
