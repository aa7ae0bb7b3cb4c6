"""What came of making a run again: in a record, in plain values, and in words."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from common.errors import EXIT_FAILED, EXIT_FINISHED
from deploy.compare import ABSENT, Difference, UpdateDifference, difference_lines, fact_differences, fields
from deploy.divergence import FragmentDifference
from deploy.facts import Facts

DIFF_LINES = 60  # of uncommitted changes that are shown


class Verdict(StrEnum):
    """How a reproduction ended."""

    IDENTICAL = "identical"  # every update that was asked for
    DIFFERENT = "different"
    INCOMPLETE = "incomplete"  # identical, but the ledger does not reach as far as the run, or somebody stopped it


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproduction:
    """What came of making a run again.

    Attributes:
        run: its name.
        verdict: in a word.
        updates: how many were asked for.
        identical_through: last update that was the same.
        fragments: how many were made and were the same, dropped ones included.
        difference: the first; None unless the verdict is DIFFERENT.
        why: what the difference points at, or why the reproduction is incomplete; "" if it is identical.
        recorded: facts of the process that made the run.
        here: facts of this one.
    """

    run: str
    verdict: Verdict
    updates: int
    identical_through: int
    fragments: int
    difference: FragmentDifference | UpdateDifference | None
    why: str
    recorded: Facts
    here: Facts

    @property
    def exit_code(self) -> int:
        """0 identical, else 1."""
        return EXIT_FINISHED if self.verdict is Verdict.IDENTICAL else EXIT_FAILED

    @property
    def facts(self) -> tuple[Difference, ...]:
        """Where the two processes differ; a is the recorded one."""
        return fact_differences(self.recorded, self.here)

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        kind = {FragmentDifference: "fragment", UpdateDifference: "update", type(None): ""}[type(self.difference)]
        return {
            "run": self.run,
            "verdict": self.verdict.value,
            "updates": self.updates,
            "identical_through": self.identical_through,
            "fragments": self.fragments,
            "kind": kind,
            "difference": None if self.difference is None else self.difference.to_plain(),
            "why": self.why,
            "facts": [each.to_plain() for each in self.facts],
            "recorded": self.recorded,
            "here": self.here,
        }


def reproduction_lines(result: Reproduction) -> list[str]:
    """A reproduction for people: the verdict last."""
    through = f"identical through update {result.identical_through} of {result.updates}, {result.fragments} fragments"
    match result.verdict:
        case Verdict.IDENTICAL:
            return [f"identical through update {result.identical_through}, {result.fragments} fragments"]
        case Verdict.INCOMPLETE:
            return [f"INCOMPLETE   {through}", f"why          {result.why}"]
        case Verdict.DIFFERENT:
            return [*_place_lines(result), *_fact_lines(result), f"DIFFERENT    {through}; {result.why}"]


def _place_lines(result: Reproduction) -> Iterator[str]:
    difference = result.difference
    match difference:
        case FragmentDifference():
            name = f"actor {difference.actor}, incarnation {difference.incarnation}, sequence {difference.sequence}"
            yield f"difference   fragment of {name}, made by the weights after update {difference.weights}"
        case UpdateDifference():
            yield f"difference   update {difference.update}"
        case None:
            return
    yield f"             recorded: {fields(difference.a)}"
    yield f"             here:     {fields(difference.b)}"


def _fact_lines(result: Reproduction) -> Iterator[str]:
    """Both sides in short, what differs between them, and the uncommitted changes that the run was made with."""
    for title, facts in (("recorded", result.recorded), ("here", result.here)):
        yield f"{title:<12} {fields(_brief_facts(facts))}"
    yield from difference_lines("facts", result.facts)
    recorded, here = result.recorded.get("git") or {}, result.here["git"]
    if recorded.get("dirty") and recorded.get("diff_sha256") != here.get("diff_sha256"):
        lines = str(recorded.get("diff", "")).splitlines()
        yield "changes      that were not committed when the run was made:"
        yield from (f"             {line}" for line in lines[:DIFF_LINES])
        if len(lines) > DIFF_LINES:
            yield f"             ... and {len(lines) - DIFF_LINES} lines more, see --json"


def _brief_facts(facts: Facts) -> dict[str, Any]:
    """What to look at first; facts that an older truestep did not record are absent."""
    git, cpu, torch = (facts.get(topic) or {} for topic in ("git", "cpu", "torch"))
    versions = facts.get("distributions") or {}
    return {
        "commit": str(git.get("commit") or ABSENT)[:12] + ("+changes" if git.get("dirty") else ""),
        "python": (facts.get("python") or {}).get("version"),
        **{name: (versions.get(name) or {}).get("version") for name in ("torch", "numpy", "gymnasium")},
        "threads": torch.get("threads"),
        "cpu": cpu.get("model"),
        "flags": ",".join(cpu.get("flags") or ()),
        "gpu": ", ".join(str(model) for model in (facts.get("gpu") or {}).get("models") or ()),
    }
