"""Where ranks disagree, and, once the update has been made again, who was wrong.

Every rank runs the same search with the same gathers, so every rank finds the same dispute:

    digests of all steps differ? ─► the first such step, its chunks           DIGEST
    else sums of some step fail? ─► the first such step, its bucket           CONSERVATION
    else states differ?          ─► chunks of parameters and moments          PARAMETERS
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np
import xxhash
from numpy.typing import NDArray

from common.weights import ParameterManifest
from learner.parallel.buckets import Bucket, Chunk, names_between
from learner.parallel.digests import combined
from learner.parallel.group import Replicated
from learner.parallel.ledger import Step
from learner.parallel.verdict import first_unlike, unconserved_bucket, unlike_columns, wrong_rows
from learner.reports import Attribution, Dispute, Fault

Gather = Callable[[NDArray[np.uint64]], NDArray[np.uint64]]
_Found = tuple[Dispute, NDArray[np.uint64]]
STATE = -1  # in place of a step: the state after all of them


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstAttempt:
    """What must be remembered of a disputed attempt to say, after the next one, who was wrong.

    Attributes:
        dispute: what was found.
        digests: by rank and chunk, of the disputed step or state [n, c].
        heard: words of all ranks, by step [n, k]; None where they were damaged.
    """

    dispute: Dispute
    digests: NDArray[np.uint64]
    heard: tuple[NDArray[np.uint64] | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How the gradient is cut: what numbers of buckets and chunks mean."""

    ranks: tuple[int, ...]
    manifest: ParameterManifest
    buckets: tuple[Bucket, ...]
    chunks: tuple[Chunk, ...]

    def names(self, chunks: Sequence[int]) -> tuple[str, ...]:
        """Parameters in these chunks."""
        found: dict[str, None] = {}
        for chunk in chunks:
            found.update(dict.fromkeys(names_between(self.manifest, self.chunks[chunk].start, self.chunks[chunk].stop)))
        return tuple(found)


def find_dispute(gather: Gather, steps: Sequence[Step], replicated: Replicated, layout: Layout) -> FirstAttempt:
    """Search together; every rank must have equally many steps."""
    dispute, digests = _search(gather, steps, replicated, layout)
    return FirstAttempt(dispute=dispute, digests=digests, heard=tuple(step.heard for step in steps))


def _search(gather: Gather, steps: Sequence[Step], replicated: Replicated, layout: Layout) -> _Found:
    digests = gather(np.array([combined(step.chunk_digests, step.number) for step in steps], dtype=np.uint64))
    if (number := first_unlike(digests)) is not None:
        return _digest_dispute(gather, steps[number], layout)
    words = gather(np.concatenate([step.words() for step in steps])) if steps else digests
    for step, heard in zip(steps, np.split(words, len(steps) or 1, axis=1), strict=False):
        weighed = dataclasses.replace(step, heard=heard).weighed()
        if (bucket := unconserved_bucket(weighed)) is not None:
            return _conservation_dispute(step, heard, bucket, layout)
    return _state_dispute(gather, replicated, layout)


def uneven_dispute(lengths: NDArray[np.uint64], layout: Layout) -> FirstAttempt:
    """Ranks made different numbers of steps: whatever made them do so lies before the first missing one."""
    digests = {rank: f"{int(length)} steps" for rank, length in zip(layout.ranks, lengths, strict=True)}
    dispute = Dispute(fault=Fault.DIGEST, step=int(lengths.min()), bucket=-1, chunks=(), parameters=(), digests=digests)
    return FirstAttempt(dispute=dispute, digests=np.zeros((len(layout.ranks), 0), dtype=np.uint64), heard=())


def _digest_dispute(gather: Gather, step: Step, layout: Layout) -> _Found:
    digests = gather(step.chunk_digests)
    chunks = tuple(unlike_columns(digests))
    dispute = Dispute(
        fault=Fault.DIGEST,
        step=step.number,
        bucket=layout.chunks[chunks[0]].bucket if chunks else -1,
        chunks=chunks,
        parameters=layout.names(chunks),
        digests=_seen(gather, step, digests, chunks, layout.ranks),
    )
    return dispute, digests


def _seen(
    gather: Gather, step: Step, digests: NDArray[np.uint64], chunks: tuple[int, ...], ranks: tuple[int, ...]
) -> dict[int, str]:
    """Each rank's view of the disputed chunks: SHA-256 where an earlier dispute had them watched, else xxh3."""
    watched = sha256("".join(step.sha256.values()).encode()).digest() if step.sha256 else b"\0" * 32
    seen = gather(np.frombuffer(watched, dtype=np.uint64))
    if bool(seen.any(1).all()):
        return {rank: f"sha256 {words.tobytes().hex()}" for rank, words in zip(ranks, seen, strict=True)}
    return {rank: xxhash.xxh3_64_hexdigest(row[list(chunks)]) for rank, row in zip(ranks, digests, strict=True)}


def _conservation_dispute(step: Step, heard: NDArray[np.uint64], bucket: int, layout: Layout) -> _Found:
    place = layout.buckets[bucket]
    totals = np.ascontiguousarray(heard[:, 1:]).view(np.float64)[:, 2 * bucket]
    dispute = Dispute(
        fault=Fault.CONSERVATION,
        step=step.number,
        bucket=bucket,
        chunks=(),
        parameters=names_between(layout.manifest, place.start, place.stop),
        digests={rank: f"put in {total:.9g}" for rank, total in zip(layout.ranks, totals, strict=True)},
    )
    return dispute, np.repeat(step.chunk_digests[None], len(layout.ranks), axis=0)


def _state_dispute(gather: Gather, replicated: Replicated, layout: Layout) -> _Found:
    """Also where nothing differs any more: then only what was heard of a step was damaged, and no chunk is named."""
    digests = gather(replicated.chunk_digests())
    chunks = unlike_columns(digests)
    dispute = Dispute(
        fault=Fault.PARAMETERS,
        step=STATE,
        bucket=-1,
        chunks=tuple(chunks),
        parameters=replicated.names(chunks),
        digests={r: xxhash.xxh3_64_hexdigest(row[chunks]) for r, row in zip(layout.ranks, digests, strict=True)},
    )
    return dispute, digests


def watched_chunks(first: FirstAttempt | None, step: Step) -> list[int]:
    """Chunks of this step of which SHA-256 goes on record: the disputed ones, or those that now are different."""
    if first is None or first.dispute.step != step.number:
        return []
    if first.dispute.chunks:
        return list(first.dispute.chunks)
    if first.digests.shape[1] != len(step.chunk_digests):
        return []
    return [int(chunk) for chunk in np.flatnonzero(first.digests[0] != step.chunk_digests)]


def attribute(first: FirstAttempt, steps: Sequence[Step], replicated: Replicated, layout: Layout) -> Attribution:
    """Who was wrong in the first attempt, now that all ranks agree."""
    dispute = first.dispute
    match dispute.fault:
        case Fault.DIGEST if dispute.chunks and dispute.step < len(steps):
            step = steps[dispute.step]
            places = wrong_rows(first.digests, step.chunk_digests, dispute.chunks)
            return Attribution(dispute=dispute, ranks=_ranks(layout, places), sha256=step.sha256)
        case Fault.CONSERVATION if dispute.step < len(steps):
            return _attribute_sum(first, steps[dispute.step], layout)
        case Fault.PARAMETERS if dispute.chunks:
            places = _first_to_stray(first, steps)
            places = places or wrong_rows(first.digests, replicated.chunk_digests(), dispute.chunks)
            return Attribution(dispute=dispute, ranks=_ranks(layout, places))
        case _:
            return Attribution(dispute=dispute, ranks=())


def _attribute_sum(first: FirstAttempt, step: Step, layout: Layout) -> Attribution:
    """Chunks that came out differently; a rank only if what it *put in* was different too, else it was the way."""
    chunks = [int(chunk) for chunk in np.flatnonzero(first.digests[0] != step.chunk_digests)]
    dispute = dataclasses.replace(first.dispute, chunks=tuple(chunks), parameters=layout.names(chunks))
    places = _unlike_summands(first.heard[step.number], step.heard)
    return Attribution(dispute=dispute, ranks=_ranks(layout, places), sha256=step.sha256)


def _first_to_stray(first: FirstAttempt, steps: Sequence[Step]) -> list[int]:
    """Who put in something else at the first step where anybody did: a rank whose parameters had gone wrong before."""
    for heard, step in zip(first.heard, steps, strict=False):
        if places := _unlike_summands(heard, step.heard):
            return places
    return []


def _unlike_summands(first: NDArray[np.uint64] | None, now: NDArray[np.uint64] | None) -> list[int]:
    """Places whose sums differ between two attempts at a step; the digests before them do not count."""
    if first is None or now is None:
        return []
    return [int(place) for place in np.flatnonzero((first[:, 1:] != now[:, 1:]).any(1))]


def _ranks(layout: Layout, places: Sequence[int]) -> tuple[int, ...]:
    """Names for places; if all were wrong, nobody can be named."""
    return tuple(layout.ranks[place] for place in places) if len(places) < len(layout.ranks) else ()
