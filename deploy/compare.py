"""Two runs side by side: what they were asked, on what they ran, where they part, what came of them.

Pure but for `compare_runs`, which reads the two records.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from common.runs import RunRegistry, UpdateRecord
from deploy.display import brief
from deploy.outputs import open_registry
from deploy.report import run_report

SHOWN_FACTS = (  # that may explain a difference; not where something lies, nor how large the machine is
    *("sources", "git.commit", "git.dirty", "git.diff_sha256", "distributions"),
    *("python.version", "python.implementation", "system.libc", "system.kernel", "system.machine"),
    *("cpu.vendor", "cpu.model", "cpu.flags", "torch", "gpu", "environment", "init_from"),
)
RESULTS = ("status", "updates", "env_steps", "evaluation", "best_evaluation", "wall_s", "chain")
ABSENT = "–"
KEY_WIDTH = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that two sides do not share.

    Attributes:
        key: where it stands, as a dotted path.
        a, b: the value on either side; None where it is absent.
    """

    key: str
    a: Any
    b: Any

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"key": self.key, "a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateDifference:
    """The first update after which two histories are not the same.

    Attributes:
        update: its number.
        a, b: what either side recorded of it.
    """

    update: int
    a: dict[str, Any]
    b: dict[str, Any]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"update": self.update, "a": self.a, "b": self.b}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What `truestep compare` found.

    Attributes:
        a, b: names of the runs.
        config: differences of configuration.
        facts: differences of code, versions and machine.
        identical_through: last update up to which the runs are the same; 0 if they never were.
        first_difference: the update after it, if both runs have one.
        results: by side, what came of the run.
    """

    a: str
    b: str
    config: tuple[Difference, ...]
    facts: tuple[Difference, ...]
    identical_through: int
    first_difference: UpdateDifference | None
    results: dict[str, dict[str, Any]]

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "a": self.a,
            "b": self.b,
            "config": [each.to_plain() for each in self.config],
            "facts": [each.to_plain() for each in self.facts],
            "identical_through": self.identical_through,
            "first_difference": None if self.first_difference is None else self.first_difference.to_plain(),
            "results": self.results,
        }


def compare_runs(a: str, b: str, *, out: Path, out_b: Path | None = None) -> Comparison:
    """Compare run `a` of `out` with run `b` of `out_b`, which is `out` by default.

    Raises:
        RunNotFoundError: one of them is not there.
    """
    with open_registry(out) as first, open_registry(out if out_b is None else out_b) as second:
        return compare(first, a, second, b)


def compare(first: RunRegistry, a: str, second: RunRegistry, b: str) -> Comparison:
    """Compare run `a` of one registry with run `b` of another, or the same."""
    one, two = first.run(a), second.run(b)
    through, difference = first_difference(first.updates(a), second.updates(b))
    return Comparison(
        a=a,
        b=b,
        config=tuple(differences(one.config, two.config)),
        facts=fact_differences(one.facts, two.facts),
        identical_through=through,
        first_difference=difference,
        results={"a": _results(first, a), "b": _results(second, b)},
    )


def differences(a: Mapping[str, Any], b: Mapping[str, Any], within: str = "") -> Iterator[Difference]:
    """Values that differ, by dotted path, in the order of `a` and then `b`.

    >>> [each.key for each in differences({"seed": 1, "env": {"id": "x"}}, {"seed": 1, "env": {"id": "y"}, "n": 2})]
    ['env.id', 'n']
    """
    for key in [*a, *(key for key in b if key not in a)]:
        path = f"{within}.{key}" if within else str(key)
        left, right = a.get(key), b.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            yield from differences(left, right, path)
        elif left != right:
            yield Difference(key=path, a=left, b=right)


def fact_differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[Difference, ...]:
    """Differences between two processes' facts, as far as they may explain other results.

    Of a distribution whose version differs, the hash of its files is not told as well.
    """
    found = [each for each in differences(a, b) if _is_shown(each.key)]
    versions = {each.key.removesuffix(".version") for each in found if each.key.endswith(".version")}
    return tuple(
        each
        for each in found
        if not (each.key.endswith(".record_sha256") and each.key.removesuffix(".record_sha256") in versions)
    )


def first_difference(a: Sequence[UpdateRecord], b: Sequence[UpdateRecord]) -> tuple[int, UpdateDifference | None]:
    """The last update up to which two histories are the same, and the first one after which they are not.

    Args:
        a, b: the updates of the runs, from the first, in order. Where one run is shorter, what the other did after its
            end is no difference.
    """
    through = 0
    for one, two in zip_longest(a, b):
        if one is None or two is None:
            break
        if not same_result(one, two):
            return through, UpdateDifference(update=min(one.update, two.update), a=side(one), b=side(two))
        through = one.update
    return through, None


def same_result(a: UpdateRecord, b: UpdateRecord) -> bool:
    """Whether two updates have one number and left the same bits. Digests that one side did not record are not
    compared."""
    states_differ = bool(a.state_digest and b.state_digest) and a.state_digest != b.state_digest
    return a.update == b.update and a.parameter_digest == b.parameter_digest and not states_differ


def side(update: UpdateRecord) -> dict[str, Any]:
    """What one side tells of an update that differs."""
    return {
        "update": update.update,
        "parameter_digest": update.parameter_digest,
        "state_digest": update.state_digest,
        "term": update.term,
        "env_steps": update.env_steps,
        "trained": update.trained,
        "num_ranks": update.num_ranks,
        "lag": None if math.isnan(update.lag) else update.lag,
    }


def comparison_lines(comparison: Comparison) -> list[str]:
    """A comparison for people."""
    lines = [_line("runs", f"a {comparison.a}, b {comparison.b}")]
    lines += difference_lines("config", comparison.config)
    lines += difference_lines("facts", comparison.facts)
    through, first = comparison.identical_through, comparison.first_difference
    lines.append(_line("updates", f"identical through update {through}" if through else "not one is identical"))
    if first is not None:
        lines.append(_line("", f"first difference: update {first.update}"))
        lines += [_line("", f"{name}: {fields(values)}") for name, values in (("a", first.a), ("b", first.b))]
    results = comparison.results
    for key in RESULTS:
        lines.append(_line("results" if key == RESULTS[0] else "", f"{key}: a {_word(results['a'][key])}"))
        lines[-1] += f", b {_word(results['b'][key])}"
    return lines


def difference_lines(title: str, found: Sequence[Difference]) -> list[str]:
    """Differences for people, a line each."""
    if not found:
        return [_line(title, "no difference")]
    words = [f"{each.key}: a {_word(each.a)}, b {_word(each.b)}" for each in found]
    return [_line(title if number == 0 else "", text) for number, text in enumerate(words)]


def fields(values: Mapping[str, Any]) -> str:
    """The facts of one side in a line; digests whole, since people compare them."""
    return "  ".join(f"{key}={ABSENT if value is None or value == '' else value}" for key, value in values.items())


def _is_shown(key: str) -> bool:
    if key.startswith("sources.") and key.endswith(".path"):
        return False
    return any(key == shown or key.startswith(f"{shown}.") for shown in SHOWN_FACTS)


def _results(registry: RunRegistry, run: str) -> dict[str, Any]:
    report = run_report(registry, run)
    return {key: report[key] for key in RESULTS}


def _line(title: str, text: str) -> str:
    return f"{title:<{KEY_WIDTH}} {text}"


def _word(value: Any) -> str:
    return ABSENT if value is None or value == "" else brief(value)
