"""One named PromQL expression: what it says, in which unit, and when it has nothing to say.

PromQL is written once for all who use it. `{$run}` stands where series of a run are selected, `[$window]` where rates
are taken:

    sum by (run) (rate(truestep_driver_updates_total{$run}[$window]))

    on a board    sum by (run) (rate(truestep_driver_updates_total{run=~"$run"}[$__rate_interval]))
    in an alert   sum by (run) (rate(truestep_driver_updates_total[5m]))
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

CHOSEN_RUNS = 'run=~"$run"'  # the variable of every board
RATE_WINDOW = "$__rate_interval"  # Grafana: at least four scrapes, at least one pixel


class Unit(StrEnum):
    """What the numbers are; values are Grafana's names of units."""

    NUMBER = "short"
    SHARE = "percentunit"  # 0 to 1
    SECONDS = "s"
    BYTES = "bytes"
    BYTES_RATE = "Bps"
    STEPS = "suffix: steps"
    STEPS_RATE = "suffix: steps/s"
    UPDATES = "suffix: updates"
    UPDATES_RATE = "suffix: updates/s"
    EPISODES_RATE = "suffix: episodes/s"
    FRAGMENTS = "suffix: fragments"
    FRAGMENTS_RATE = "suffix: fragments/s"
    TRANSITIONS = "suffix: transitions"
    TRANSITIONS_RATE = "suffix: transitions/s"
    RETURN = "suffix: return"
    CORES = "suffix: cores"
    PROCESSES = "suffix: processes"
    FLAG = "bool_yes_no"  # 1 or 0


class When(StrEnum):
    """When a query has an answer, where it does not always have one; values are the words that boards show."""

    RUNNING = ""  # from the first update on
    EPISODE = "Empty until a training episode has ended."
    EVALUATED = "Empty until an evaluation has been played."
    CHECKPOINTED = "Empty until a checkpoint has been written."
    ASYNCHRONOUS = "Empty in synchronous collection."
    PROCESSES = "Empty with engine inline, where everything is in the driver's process."
    GPU = "Empty where no process has a GPU."
    RECOVERED = "Empty until the group of ranks has recovered from something."
    FIRING = "Empty while nothing is wrong."


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A PromQL expression.

    Attributes:
        promql: the expression, with `{$run}` and `[$window]`; every series of the answer has the label `run`.
        unit: of the numbers.
        help: what they say, and what is usual, in one or two sentences.
        legend: what a line is called, in Grafana's `{{label}}` form.
        when: when there is an answer that is a number.
    """

    promql: str
    unit: Unit
    help: str
    legend: str = "{{run}}"
    when: When = When.RUNNING

    def on_board(self) -> str:
        """As a panel asks it: of the runs chosen, at the resolution of the picture."""
        return self.asked(matcher=CHOSEN_RUNS, window=RATE_WINDOW)

    def asked(self, *, matcher: str = "", window: str = "") -> str:
        """The PromQL, ready to be sent.

        Args:
            matcher: what selects the runs, as `run="r"`; every run by default.
            window: range of rates, as "5m".
        """
        selected = re.sub(r"\{\$run(?:, )?", lambda found: _opened(found[0], matcher), self.promql)
        return selected.replace("{}", "").replace("$window", window)


def quantile(share: float, histogram: str, *, by: str = "run") -> str:
    """PromQL: the value below which `share` of what `histogram` observed lies, for each value of the labels `by`."""
    return f"histogram_quantile({share:g}, sum by ({by}, le) (rate({histogram}_bucket{{$run}}[$window])))"


def mean(histogram: str, *, by: str = "run") -> str:
    """PromQL: the mean of what `histogram` observed; no answer where it observed nothing."""
    total = f"sum by ({by}) (rate({histogram}_sum{{$run}}[$window]))"
    return f"{total} / sum by ({by}) (rate({histogram}_count{{$run}}[$window]) > 0)"


def _opened(marker: str, matcher: str) -> str:
    """What `{$run` or `{$run, ` becomes."""
    return "{" + (matcher + ", " if matcher and marker.endswith(", ") else matcher)
