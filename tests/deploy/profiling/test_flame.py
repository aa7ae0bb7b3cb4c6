"""Flame graphs: what is counted is what is drawn, and the file needs nothing else."""

from __future__ import annotations

import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.profiling.flame import boxes_of, flame_svg
from deploy.profiling.folded import Folded, parse_folded, tree_of

SVG = "{http://www.w3.org/2000/svg}"
STACKS = {
    ("main", "a (x.py)"): 1,
    ("main", "a (x.py)", "b (x.py)"): 2,
    ("main", "c (y.py)"): 1,
    ("other", "b (x.py)"): 4,
}
stacks = st.dictionaries(
    st.lists(st.sampled_from(["f (a.py)", "g (b.py)", 'h<&>" (c.py)']), min_size=1, max_size=6).map(tuple),
    st.integers(1, 1000),
    min_size=1,
    max_size=12,
)


def test_lines_of_other_tools_are_read() -> None:
    """Semicolons between frames, the count last; frames may hold spaces; equal stacks add up."""
    text = "main;step (env.py);spin (env.py) 12\n\nmain;step (env.py) 3\nmain;step (env.py) 4\n"
    assert parse_folded(text) == {("main", "step (env.py)", "spin (env.py)"): 12, ("main", "step (env.py)"): 7}
    with pytest.raises(ValueError):
        parse_folded("no count at its end")


def test_the_tree_holds_every_frame_under_its_callers() -> None:
    """Worked out by hand: a frame counts what is in it and in what it called."""
    root = tree_of(STACKS)
    assert root.count == 8
    assert {label: node.count for label, node in root.below.items()} == {"main": 4, "other": 4}
    assert root.below["main"].below["a (x.py)"].count == 3
    assert root.below["main"].below["a (x.py)"].below["b (x.py)"].count == 2


def test_the_hottest_functions_are_those_that_were_innermost() -> None:
    """Under whichever caller."""
    assert Folded(counts=STACKS).hottest(2) == [("b (x.py)", 0.75), ("a (x.py)", 0.125)]


def test_boxes_stand_on_what_called_them() -> None:
    """By hand: `main` and `other` share the width; what main called stands on it, in order of name."""
    placed = {(box.label, box.depth): (box.left, box.share) for box in boxes_of(Folded(counts=STACKS))}
    assert placed == {
        ("all", 0): (0.0, 1.0),
        ("main", 1): (0.0, 0.5),
        ("other", 1): (0.5, 0.5),
        ("a (x.py)", 2): (0.0, 0.375),
        ("c (y.py)", 2): (0.375, 0.125),
        ("b (x.py)", 2): (0.5, 0.5),
        ("b (x.py)", 3): (0.0, 0.25),
    }


def test_what_is_too_narrow_to_be_seen_is_left_out() -> None:
    """One sample in 100,000 is no box; the file stays small however long was sampled."""
    folded = Folded(counts={("main", "wide (x.py)"): 100_000, ("main", "narrow (x.py)"): 1})
    assert "narrow (x.py)" not in {box.label for box in boxes_of(folded)}


@settings(deadline=None, max_examples=50)
@given(stacks)
def test_boxes_lie_within_their_callers_and_beside_one_another(counts: dict[tuple[str, ...], int]) -> None:
    """No two boxes of a depth overlap, and each row is at most as wide as the one below."""
    boxes = boxes_of(Folded(counts=counts))
    for depth in range(1, max(box.depth for box in boxes) + 1):
        row = sorted((box.left, box.left + box.share) for box in boxes if box.depth == depth)
        below = [(box.left, box.left + box.share) for box in boxes if box.depth == depth - 1]
        assert all(right <= left + 1e-9 for (_, right), (left, _) in pairwise(row))
        assert all(any(a - 1e-9 <= left and right <= b + 1e-9 for a, b in below) for left, right in row)


@settings(deadline=None, max_examples=25)
@given(stacks, st.text(max_size=20).filter(lambda text: text.isprintable()))
def test_the_file_is_sound_whatever_functions_are_called(counts: dict[tuple[str, ...], int], title: str) -> None:
    """It parses, every label is there as it is, and nothing is fetched from anywhere."""
    svg = flame_svg(Folded(counts=counts), title=title)
    root = ElementTree.fromstring(svg)
    names = {group.get("data-n") for group in root.iter(f"{SVG}g")}
    assert {label for stack in counts for label in stack} <= names | too_narrow(counts)
    assert re.findall(r"(?:href|src|url)\s*[=(]", svg) == []
    assert re.findall(r"https?://[^\"]*", svg) == ["http://www.w3.org/2000/svg"]


def too_narrow(counts: dict[tuple[str, ...], int]) -> set[str]:
    shown = {box.label for box in boxes_of(Folded(counts=counts))}
    return {label for stack in counts for label in stack} - shown


def test_a_box_says_its_share_and_its_amount() -> None:
    """In samples, or in CPU time where that was counted."""
    svg = flame_svg(Folded(counts={("main", "spin (env.py)"): 1_500_000}, in_us=True), title="actor-1 of r")
    assert "<title>spin (env.py): 1,500 ms of CPU, 100.0%</title>" in svg
    assert "1,500 ms of CPU, most of it in spin (env.py) 100%" in svg
    assert "<title>main: 3 samples, 100.0%</title>" in flame_svg(Folded(counts={("main",): 3}), title="t")


def test_nothing_seen_is_said_so() -> None:
    """An idle process gives a picture, too."""
    svg = flame_svg(Folded(counts={}), title="actor-1 of r")
    ElementTree.fromstring(svg)
    assert "every thread was waiting; --idle" in svg
