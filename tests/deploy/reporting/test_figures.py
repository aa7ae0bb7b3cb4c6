"""What charts are made of: scales, ticks, thinned lines, elements, and what the pictures say."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.reporting.charts import line_chart
from deploy.reporting.plots import SMALL, Along, Band, Chart, Series
from deploy.reporting.sampling import chunks, keep_extremes, spread_out
from deploy.reporting.scale import (
    Scale,
    axis_words,
    bounds,
    clock_words,
    exact,
    round_values,
    short,
    ticks,
    time_ticks,
    wants_log,
)
from deploy.reporting.stacked import Layer, Stack, share_bar, stacked_chart
from deploy.reporting.svg import Array, band_path, element, line_path
from deploy.reporting.timeline import NARROW_TIMELINE, Mark, Row, Stretch, timeline
from tests.deploy.reporting.document import Document

NAN = float("nan")
FINITE = st.floats(-1e12, 1e12, allow_nan=False)


def array(*values: float) -> Array:
    return np.asarray(values, np.float64)


def chart(*series: Series, **changes: object) -> Chart:
    usual = {"title": "T", "unit": "u", "along": Along.STEPS, "series": series}
    return Chart(**usual | changes)  # type: ignore[arg-type]


def line(*y: float, side: int = 0, gaps: bool = True) -> Series:
    return Series(name="n", side=side, x=np.arange(1.0, len(y) + 1), y=array(*y), gaps=gaps)


# ── words and scales ─────────────────────────────────────────────────────────────────────────────────────────────


def test_numbers_are_written_for_people() -> None:
    """On axes short, in tables with four digits; what is not finite is said."""
    assert [short(value) for value in (0.0, -0.25, 9999.0, 12_500.0, 2e6, 1e-5)] == [
        *("0", "-0.25", "9,999", "12.5k", "2M", "1×10⁻⁵")
    ]
    assert [exact(value) for value in (0.0, 1.5, 123456.7, 2e-5, math.inf, NAN, None)] == [
        *("0", "1.5", "123,457", "2×10⁻⁵", "not finite", "not finite", "–")
    ]
    assert [clock_words(seconds) for seconds in (0.0, 59.0, 60.0, 61.0, 3600.0, 90_061.0)] == [
        *("0 s", "59 s", "1 min", "1:01 min", "1 h", "1 d 1:01 h")
    ]


def test_an_axis_speaks_in_one_manner() -> None:
    """All in thousands if the largest is; decimals as long as they are short."""
    assert axis_words([0.0, 5000.0, 10_000.0]) == ["0", "5k", "10k"]
    assert axis_words([-0.0005, 0.0, 0.001]) == ["-0.0005", "0", "0.001"]
    assert axis_words([]) == []


@settings(deadline=None, max_examples=200)
@given(low=FINITE, span=st.floats(1e-9, 1e12), most=st.integers(2, 12))
def test_ticks_are_few_round_and_inside(low: float, span: float, most: int) -> None:
    """Whatever the range is, as long as floats can tell its ends apart."""
    high = low + span
    if high - low < 1e-6 * max(abs(low), abs(high)):
        return
    values = round_values(low, high, most=most)
    step = (high - low) / most
    assert len(values) <= most / 0.9 + 2
    assert all(low - 1e-6 * step <= value <= high + 1e-6 * step for value in values)


@pytest.mark.parametrize("seconds", [0.7, 12.0, 47.0, 600.0, 40_000.0, 3e6])
def test_time_has_ticks_at_every_length(seconds: float) -> None:
    """Two at least, seven at most."""
    assert 2 <= len(time_ticks(Scale(low=0.0, high=seconds, start=0.0, end=1.0))) <= 7


def test_bounds_hold_everything_and_are_never_empty() -> None:
    """One value alone, none, or zero where it is asked for."""
    assert bounds(array(2.0, 2.0)) == pytest.approx((1.8, 2.2))
    assert bounds(array(0.0)) == (-1.0, 1.0)
    assert bounds(array(NAN, math.inf)) == (0.0, 1.0)
    assert bounds(array(10.0, 20.0), from_zero=True)[0] == 0.0


def test_spikes_far_above_the_rest_get_a_logarithmic_axis() -> None:
    """If all values are above zero; decades are its ticks."""
    assert wants_log(array(1.0, 1.0, 1.0, 1e4)) and not wants_log(array(0.0, 1.0, 1.0, 1e4))
    scale = Scale(low=1.0, high=1e4, start=0.0, end=100.0, log=True)
    assert scale.at(100.0) == pytest.approx(50.0)
    assert [value for value, _ in ticks(scale)] == [1.0, 10.0, 100.0, 1000.0, 10_000.0]
    assert "log scale" in line_chart(chart(line(1.0, 1.0, 1.0, 1e4)))


# ── thinning ─────────────────────────────────────────────────────────────────────────────────────────────────────


@settings(deadline=None, max_examples=100)
@given(y=st.lists(st.one_of(FINITE, st.just(NAN)), max_size=300), buckets=st.integers(1, 20))
def test_thinning_keeps_the_extremes_and_both_ends(y: list[float], buckets: int) -> None:
    """At most four points a bucket, in order, and no spike is lost."""
    values = np.asarray(y, np.float64)
    kept = keep_extremes(values, buckets)
    assert len(kept) <= max(4 * buckets, len(y) if len(y) <= 4 * buckets else 0)
    assert np.all(np.diff(kept) > 0)
    finite = values[np.isfinite(values)]
    if len(finite):
        shown = values[kept][np.isfinite(values[kept])]
        assert (shown.min(), shown.max()) == (finite.min(), finite.max())
        assert (shown[0], shown[-1]) == (finite[0], finite[-1])


def test_a_stretch_without_any_value_stays_a_gap() -> None:
    """Though its points are many."""
    y = np.concatenate([np.ones(100), np.full(100, NAN), np.ones(100)])
    kept = keep_extremes(y, 6)
    assert np.isnan(y[kept]).any()


@pytest.mark.parametrize("length", [0, 1, 5, 7, 100])
def test_runs_of_indices_are_whole_and_even(length: int) -> None:
    """None is lost, none is empty; samples hold the first and the last."""
    runs = list(chunks(length, 7))
    assert [int(index) for run in runs for index in run] == list(range(length))
    assert all(len(run) for run in runs) and len(runs) == min(length, 7)
    assert (
        spread_out(length, 7)[:1] == list(range(length))[:1] and spread_out(length, 7)[-1:] == list(range(length))[-1:]
    )


# ── elements ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_whatever_is_put_into_an_element_is_escaped() -> None:
    """Words and values of attributes alike."""
    made = element("text", "<b>&", class_='"><script>', text_anchor=None, x=1.26)
    assert made == '<text class="&#34;&gt;&lt;script&gt;" x="1.3">&lt;b&gt;&amp;</text>'


def test_a_line_is_broken_where_there_is_no_value() -> None:
    """And begins anew behind it."""
    assert line_path(array(0, 1, 2, 3), array(5, NAN, 6, 7)) == "M0 5M2 6L3 7"


def test_a_band_needs_two_points_with_both_edges() -> None:
    """It is closed; what has one edge is left out."""
    assert band_path(array(0, 1), array(1, 1), array(2, NAN)) == ""
    assert band_path(array(0, 1), array(1, 1), array(2, 2)) == "M0 2L1 2L1 1L0 1Z"


# ── charts ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_chart_says_in_words_what_it_shows() -> None:
    """Title, unit, axis, and of each line first, last, lowest and highest."""
    (svg,) = Document(line_chart(chart(line(1.0, 5.0, 3.0)))).of("svg")
    assert svg["role"] == "img"
    assert svg["aria-label"] == "T, u, by environment steps. n: from 1 to 3, lowest 1, highest 5."


def test_two_runs_differ_in_more_than_colour() -> None:
    """Letters at the ends, classes that the style sheet dashes, circles and squares."""
    marks = [
        Series(
            name="m",
            side=side,
            x=array(1),
            y=array(2),
            points=True,
            bars=Band(low=array(1), high=array(3), style="bar"),
        )
        for side in (0, 1)
    ]
    document = Document(line_chart(chart(line(1, 2), line(1, 2, side=1), *marks, two_runs=True)))
    assert [each["class"] for each in document.of("text", "letter")] == ["letter s0", "letter s1"]
    assert len(document.of("path", "line")) == 2
    assert len(document.of("circle", "mark")) == len(document.of("rect", "mark")) == 1


def test_letters_at_one_place_are_moved_apart_and_stay_on_the_plot() -> None:
    """Both lines end at the foot of the axis."""
    document = Document(line_chart(chart(line(1, 0), line(1, 0, side=1), two_runs=True)))
    first, second = (float(each["y"] or "") for each in document.of("text", "letter"))
    assert second - first >= 12
    assert second <= SMALL.plot[3] + 5


def test_what_is_not_finite_is_marked_and_breaks_the_line() -> None:
    """NaN and infinity; where there just was nothing to tell, the line goes on."""
    document = Document(line_chart(chart(line(1.0, 2.0, NAN, math.inf, 3.0, 4.0))))
    assert len(document.of("path", "nonfinite")) == 2
    (path,) = document.of("path", "line")
    assert (path["d"] or "").count("M") == 2
    document = Document(line_chart(chart(line(1.0, NAN, 3.0, gaps=False))))
    assert not document.of("path", "nonfinite")
    assert (document.of("path", "line")[0]["d"] or "").count("M") == 1


def test_a_value_between_two_gaps_is_seen() -> None:
    """As a dot: a line through one point has no length."""
    assert len(Document(line_chart(chart(line(NAN, 2.0, NAN, 3.0, 4.0)))).of("circle", "dot")) == 1


@pytest.mark.parametrize("y", [(), (NAN,), (math.inf, NAN)])
def test_nothing_to_show_is_said(y: tuple[float, ...]) -> None:
    """In the picture and in its words."""
    picture = line_chart(chart(line(*y)))
    assert ("no finite value on record" if y else "nothing on record") in picture
    assert "nothing to show" in picture


def test_pointing_at_a_chart_tells_its_values() -> None:
    """Each strip has the mean of its stretch and the bounds, where there are several values."""
    titles = re.findall(r"<title>(.*?)</title>", line_chart(chart(line(*[1.0] * 50, 5.0))), re.DOTALL)
    assert len(titles) == 40
    assert titles[-1] == "up to 51 steps\nn: 3 (1 to 5)"
    assert titles[0].endswith("n: 1")


def test_a_chart_of_a_hundred_thousand_updates_is_small() -> None:
    """Its size hangs on the picture, not on the run."""
    y = np.sin(np.arange(100_000.0))
    series = Series(name="n", side=0, x=np.arange(100_000.0), y=y)
    assert len(line_chart(chart(series))) < 16_000


def test_a_stack_tells_its_means_over_what_counts() -> None:
    """Half of the first stretch does not: 0.5 of 1.5 stretches is a third."""
    stack = Stack(
        title="T",
        unit="share",
        seconds=array(1.0, 2.0),
        counted=array(0.5, 1.0),
        layers=(
            Layer(name="work", style="layer0", y=array(0.0, 0.5)),
            Layer(name="rest", style="rest", y=array(0.5, 0.5)),
        ),
        top=1.0,
        percent=True,
    )
    (svg,) = Document(stacked_chart(stack)).of("svg")
    assert svg["aria-label"] == "T, share, on average: work 33.3%, rest 66.7%."
    bar = Document(share_bar(stack))
    widths = [float(each["width"] or "") for each in bar.of("rect", "layer")]
    assert widths == pytest.approx([380 / 3, 380 * 2 / 3], abs=0.1)
    assert "work 33%" in bar.text and "rest 67%" in bar.text


def test_marks_that_would_cover_each_other_are_drawn_as_one_with_their_number() -> None:
    """If they are of one style; a cross beside a ring stays a cross."""
    marks = [Mark(seconds=1.0 + i / 1000, style="bad", words=f"fault {i}") for i in range(7)]
    row = Row(name="actors", marks=(*marks, Mark(seconds=1.01, style="good", words="mended")))
    document = Document(timeline([row], 10.0, NARROW_TIMELINE))
    assert [each["class"] for each in document.of("g", "event")] == ["event bad", "event good"]
    assert "×7" in document.text and "and 2 more" in document.text


def test_a_stretch_bears_its_words_where_there_is_room() -> None:
    """A short one tells them when pointed at."""
    stretches = (
        Stretch(begin=0, end=9, style="driven", words="driven"),
        Stretch(begin=9, end=9.2, style="fine", words="fine"),
    )
    document = Document(timeline([Row(name="run", stretches=stretches)], 10.0, NARROW_TIMELINE))
    assert len(document.of("text", "inside")) == 1
    assert "fine, 9 s to 9.2 s" in document.text
