"""64-bit words that travel through a sum of float32 numbers without losing a bit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from learner.parallel.pieces import PIECES_PER_WORD, from_pieces, to_pieces

WORDS = st.lists(st.integers(0, 2**64 - 1), max_size=8)


def words(values: list[int]) -> np.ndarray:
    """As the ranks hold them."""
    return np.array(values, dtype=np.uint64)


def test_a_word_is_four_pieces_lowest_first() -> None:
    """By hand: 0x0001_0002_0003_ffff."""
    assert to_pieces(words([0x0001_0002_0003_FFFF])).tolist() == [65535.0, 3.0, 2.0, 1.0]


@settings(deadline=None, max_examples=100)
@given(WORDS)
def test_any_word_comes_back(values: list[int]) -> None:
    """Every bit, through float32."""
    pieces = to_pieces(words(values))
    assert pieces.dtype == np.float32 and pieces.shape == (PIECES_PER_WORD * len(values),)
    heard = from_pieces(pieces)
    assert heard is not None and heard.tolist() == values


@settings(deadline=None, max_examples=60)
@given(st.lists(st.lists(st.integers(0, 2**64 - 1), min_size=3, max_size=3), min_size=2, max_size=4), st.randoms())
def test_a_sum_over_ranks_holds_the_words_of_every_rank(spoken: list[list[int]], order: object) -> None:
    """Each rank fills its slot of a zeroed tail; float32 sums in any order keep all of them exact."""
    tails = []
    for place, values in enumerate(spoken):
        tail = np.zeros((len(spoken), 3 * PIECES_PER_WORD), dtype=np.float32)
        tail[place] = to_pieces(words(values))
        tails.append(tail)
    order.shuffle(tails)  # type: ignore[attr-defined]
    total = tails[0]
    for tail in tails[1:]:
        total = total + tail
    heard = from_pieces(total)
    assert heard is not None and heard.tolist() == spoken


@pytest.mark.parametrize("damaged", [math.nan, math.inf, -math.inf, 0.5, 65536.0, -1.0, 3e38, 1e-40])
@pytest.mark.parametrize("at", [0, 3, 7])
def test_a_number_that_is_no_piece_is_damage(damaged: float, at: int) -> None:
    """Nothing is read out of such a tail, and nobody warns."""
    pieces = to_pieces(words([1, 2]))
    pieces[at] = damaged
    assert from_pieces(pieces) is None
