"""From values to places on a page, and back to words: scales, ticks, and how numbers are written."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from deploy.reporting.svg import Array

NICE_SECONDS = (
    *(0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 20, 30),
    *(60, 120, 300, 600, 900, 1200, 1800),
    *(3600, 7200, 10800, 21600, 43200),
)
DAY_S = 86_400
LOG_RATIO = 300.0  # between largest and median value, above which a linear axis would show one spike and nothing else
UNITS = ((1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))  # from which value on: divisor, letter
SLACK = 0.9  # a step may be this much smaller than asked for: 0 to 520 in hundreds, not in two hundreds
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values from `low` to `high` on pixels from `start` to `end`.

    Attributes:
        low, high: bounds of the values; `low` < `high`, and above 0 if `log`.
        start, end: their pixels; a vertical scale starts at the bottom.
        log: places go by the logarithm.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def place(self, values: Array) -> Array:
        """Pixels of values; NaN where a value has no place."""
        low, high = self.low, self.high
        if self.log:
            values = np.log10(np.where(values > 0, values, np.nan))
            low, high = math.log10(low), math.log10(high)
        placed: Array = self.start + (values - low) / (high - low) * (self.end - self.start)
        return placed

    def at(self, value: float) -> float:
        """The pixel of one value."""
        return float(self.place(np.asarray([value], np.float64))[0])


def bounds(values: Array, *, from_zero: bool = False) -> tuple[float, float]:
    """Lowest and highest finite value, with a little air; something sensible where there are none or all are one."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return 0.0, 1.0
    low, high = float(finite.min()), float(finite.max())
    if from_zero:
        low, high = min(low, 0.0), max(high, 0.0)
    if low == high:
        return low - (abs(low) * 0.1 or 1.0), high + (abs(high) * 0.1 or 1.0)
    air = 0.04 * (high - low)
    return (low if from_zero and low == 0 else low - air), high + air


def wants_log(values: Array) -> bool:
    """Whether only a logarithmic axis shows these values: all above zero, and a few far above the others."""
    finite = values[np.isfinite(values)]
    return len(finite) > 2 and float(finite.min()) > 0 and float(finite.max()) > LOG_RATIO * float(np.median(finite))


def ticks(scale: Scale, *, most: int = 5) -> list[tuple[float, str]]:
    """At most about `most` round values within a scale, with their words."""
    values = _decades(scale, most) if scale.log else round_values(scale.low, scale.high, most=most)
    return list(zip(values, axis_words(values), strict=True))


def axis_words(values: Sequence[float]) -> list[str]:
    """Words of an axis, all in one manner: that of the largest.

    >>> axis_words([0.0, 5e3, 1e4]), axis_words([5e-4, 1e-3]), axis_words([1e-5, 2e-5])
    (['0', '5k', '10k'], ['0.0005', '0.001'], ['1×10⁻⁵', '2×10⁻⁵'])
    """
    largest = max((abs(value) for value in values), default=0.0)
    unit = next(((divisor, letter) for limit, divisor, letter in UNITS if largest >= limit), None)
    if unit is not None and min((abs(value) for value in values if value), default=0.0) >= unit[0] / 1000:
        return [f"{plain(value / unit[0])}{unit[1] if value else ''}" for value in values]
    return [plain(value) if largest >= 1e-3 and (abs(value) >= 1e-6 or not value) else short(value) for value in values]


def round_values(low: float, high: float, *, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten.

    >>> round_values(0.0, 43.0, most=5)
    [0.0, 10.0, 20.0, 30.0, 40.0]
    """
    raw = (high - low) / max(1, most)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(multiple * power for multiple in (1, 2, 5, 10) if multiple * power >= raw * SLACK)
    return _multiples(step, low, high)


def time_ticks(scale: Scale, *, most: int = 6) -> list[tuple[float, str]]:
    """Round times in seconds, with their words."""
    raw = (scale.high - scale.low) / most
    step = next((each for each in NICE_SECONDS if each >= raw), None)
    if step is None:
        step = DAY_S * math.ceil(raw / DAY_S)
    return [(value, clock_words(value)) for value in _multiples(step, scale.low, scale.high)]


def clock_words(seconds: float) -> str:
    """A time since the start, as short as can be.

    >>> clock_words(0.5), clock_words(90), clock_words(5400), clock_words(100_000)
    ('0.5 s', '1:30 min', '1:30 h', '1 d 3:46 h')
    """
    if seconds < 60:
        return f"{plain(seconds)} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60}:{whole % 60:02d} min" if whole % 60 else f"{whole // 60} min"
    days, rest = divmod(whole, DAY_S)
    hours, minutes = rest // 3600, rest % 3600 // 60
    clock = f"{hours}:{minutes:02d} h" if minutes else f"{hours} h"
    return f"{days} d {clock}" if days else clock


def short(value: float) -> str:
    """For an axis.

    >>> [short(each) for each in (0.0, 0.25, 1500.0, 20_000.0, 1_500_000.0, 2e-4)]
    ['0', '0.25', '1,500', '20k', '1.5M', '2×10⁻⁴']
    """
    size = abs(value)
    for limit, divisor, unit in UNITS:
        if size >= limit:
            return f"{plain(value / divisor)}{unit}"
    if 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}×10{str(int(exponent)).translate(SUPERSCRIPTS)}"
    return plain(value)


def exact(value: float | None) -> str:
    """For a table: four digits, thousands apart; what is not finite is named.

    >>> exact(1234567.0), exact(0.012345), exact(float("nan")), exact(None)
    ('1,234,567', '0.01235', 'not finite', '–')
    """
    if value is None:
        return "–"
    if not math.isfinite(value):
        return "not finite"
    if value == round(value) and abs(value) < 1e15:
        return f"{value:,.0f}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return short(value) if abs(value) < 1e-3 else f"{value:.4g}"


def counted(count: int, one: str, many: str) -> str:
    """A number of things.

    >>> counted(1, "process", "processes"), counted(1200, "rollback", "rollbacks")
    ('1 process', '1,200 rollbacks')
    """
    return f"{count:,} {one if count == 1 else many}"


def plain(value: float) -> str:
    """Without needless zeros, thousands apart."""
    text = f"{value:,.10g}" if value == round(value) else f"{float(f'{value:.4g}'):.9f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _multiples(step: float, low: float, high: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _decades(scale: Scale, most: int) -> Sequence[float]:
    first, last = math.ceil(math.log10(scale.low)), math.floor(math.log10(scale.high))
    stride = max(1, math.ceil((last - first + 1) / most))
    return [10.0**power for power in range(first, last + 1, stride)]
