"""Medians, paired ratios, tables, and the line that programs read."""

from __future__ import annotations

import pytest

from benchmarks.report import Spread, paired_ratios, read_result, result_line, table


def test_spread_by_hand() -> None:
    """Median, extremes and count of four readings."""
    spread = Spread.of([4.0, 1.0, 3.0, 10.0])
    assert spread == Spread(median=3.5, low=1.0, high=10.0, count=4)
    assert spread.words(1) == "3.5 (1.0 to 10.0)"


def test_a_spread_needs_a_reading() -> None:
    """No reading has no median."""
    with pytest.raises(ValueError, match="one or more"):
        Spread.of([])


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that halves its speed between rounds changes no ratio; ratios of medians would have been 3 and 2."""
    assert paired_ratios([300.0, 150.0], [100.0, 50.0]) == Spread(median=3.0, low=3.0, high=3.0, count=2)


def test_ratios_need_the_same_rounds() -> None:
    """A missing reading is an error, not a shorter list."""
    with pytest.raises(ValueError, match="zip"):
        paired_ratios([1.0, 2.0], [1.0])


def test_table_is_aligned_markdown() -> None:
    """Columns are as wide as their widest cell."""
    assert table(["a", "long"], [["xyz", "1"]]) == "| a   | long |\n| --- | ---- |\n| xyz | 1    |"


def test_the_last_result_line_is_read_back() -> None:
    """What a benchmark prints around it does not matter."""
    output = "\n".join(["noise", result_line({"met": False}), "more", result_line({"met": True}), ""])
    assert read_result(output) == {"met": True}


def test_no_result_line_is_an_error() -> None:
    """The error shows what was printed instead."""
    with pytest.raises(ValueError, match="Traceback"):
        read_result("Traceback")


def test_a_result_holds_no_nan() -> None:
    """JSON has no NaN."""
    with pytest.raises(ValueError, match="JSON"):
        result_line({"mean": float("nan")})
