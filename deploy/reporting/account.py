"""The section on integrity: what was verified, what was found, and what became of every transition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from deploy.compare import Comparison
from deploy.reporting.blocks import Check, Section, Table
from deploy.reporting.facts import RunFacts
from deploy.reporting.headline import letter_of
from deploy.reporting.plots import SIDES
from deploy.reporting.scale import counted

COUNTED = {  # of verified sync, as `truestep show` counts it
    "mismatches": "Disagreements of ranks",
    "failures": "Syncs that failed",
    "retries": "Updates made again",
    "rollbacks": "Rollbacks",
    "ranks_lost": "Ranks lost",
    "ranks_quarantined": "Ranks shut out",
}


def integrity_section(runs: Sequence[RunFacts], comparison: Comparison | None) -> Section:
    """Sentences that say what was found, then the figures behind them."""
    checks = [check for side, run in enumerate(runs) for check in _checks(run, letter_of(runs, side))]
    return Section(
        anchor="integrity",
        title="Integrity",
        words="From digests and events on record. A fault that was found and mended is a fact, not a failure.",
        checks=(*(() if comparison is None else (_identical(comparison),)), *checks),
        tables=(_figures(runs),),
    )


def _identical(comparison: Comparison) -> Check:
    through = comparison.identical_through
    if not through:
        return Check(who="", good=None, words="A and B share no update: the parameters differ from the first on.")
    first = comparison.first_difference
    words = f"A and B have the same parameters, bit for bit, through update {through:,}"
    words += "." if first is None else f", and differ from update {first.update:,} on."
    return Check(who="", good=None, words=words)


def _checks(run: RunFacts, who: str) -> Iterator[Check]:
    verified, updates = run.summary["sync"]["verified_updates"], len(run.history)
    if updates:
        ranks = run.summary["learners"]
        by = "every rank" if ranks > 1 else "the learner"
        words = f"{verified:,} of {updates:,} updates bear a digest of the whole state, as {by} reported it."
        yield Check(who=who, good=verified == updates, words=words)
    yield from _balance(run, who)
    steps = run.history.total("verified_steps")
    if steps:
        disputes = run.tally.mismatches
        words = f"{steps:,.0f} gradient steps were verified; ranks disagreed {counted(disputes, 'time', 'times')}."
        yield Check(who=who, good=not disputes or None, words=words)
    refused = sum(moment.event.kind == "FRAGMENT_REFUSED" for moment in run.moments)
    refusals = f"{counted(refused, 'fragment was', 'fragments were')} refused, each counted with its reason."
    yield Check(who=who, good=None if refused else True, words=refusals if refused else "No fragment was refused.")
    if changed := sum(moment.event.kind == "FINGERPRINT_CHANGED" for moment in run.moments):
        yield Check(
            who=who,
            good=False,
            words=f"Code, versions or processor changed under way, {counted(changed, 'time', 'times')}.",
        )
    damaged = [str(m.event.data.get("name", "")) for m in run.moments if m.event.kind == "CHECKPOINT_SKIPPED"]
    if damaged:
        yield Check(who=who, good=False, words=f"Damaged checkpoints, passed over: {', '.join(damaged)}.")


def _balance(run: RunFacts, who: str) -> Iterator[Check]:
    """Every transition is somewhere."""
    told = run.summary
    produced, trained, in_flight = told["produced"], told["trained"], told["in_flight"]
    dropped = sum(told["dropped"].values())
    if produced:
        good = produced == trained + dropped + in_flight and in_flight >= 0
        words = (
            f"{produced:,} transitions produced = {trained:,} trained + {dropped:,} dropped + {in_flight:,} in flight"
            f"{'.' if good else ': this does not add up.'}"
        )
        yield Check(who=who, good=good, words=words)


def _figures(runs: Sequence[RunFacts]) -> Table:
    rows = [
        ("Updates with a digest", *(f"{run.summary['sync']['verified_updates']:,}" for run in runs)),
        ("Gradient steps verified", *(f"{run.history.total('verified_steps'):,.0f}" for run in runs)),
        *((words, *(f"{run.summary['sync'][name]:,}" for run in runs)) for name, words in COUNTED.items()),
        ("Fragments made", *(f"{run.summary['ledger']['made']:,}" for run in runs)),
        ("Fragments trained", *(f"{run.summary['ledger']['trained']:,}" for run in runs)),
        ("Fragments of dead actors", *(f"{run.summary['fragments_lost']:,}" for run in runs)),
        ("Term of the learner", *(str(run.record.term) for run in runs)),
        ("Version published last", *(f"{run.record.version:,}" for run in runs)),
        ("Parameters, SHA-256", *(run.record.parameter_digest or "–" for run in runs)),
        ("Chain of all updates", *(run.record.chain or "–" for run in runs)),
    ]
    head = ("", *(SIDES[: len(runs)] if len(runs) > 1 else ("figure",)))
    return Table(caption="Integrity in numbers", head=head, rows=tuple(rows))
