"""Verified gradient sync: N ranks add their gradients, and know together whether the sum was right.

    backward ─► bucket complete ─► weighed ─► all-reduce (with the tail) ─► digest by chunk, weighed ─► optimiser
                                                    │
                       tail: one slot per rank with its words of the *previous* step

So what is needed for the verdict on step i arrives with the reduce of step i+1, and for the last one when the update is
closed. Nobody acts on it before: at the close each rank reads its tails, and all learn together what any of them saw.
None skips, raises or leaves on its own, so nobody waits for somebody who has left. Until then every step is
provisional, and nothing is published.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from common.clock import Clock, thread_cpu_ns
from common.parameters import FlatParameters
from learner.parallel.buckets import BackwardOrder, Bucket, plan_buckets, plan_chunks
from learner.parallel.conservation import Measured, Scale
from learner.parallel.digests import Digester, chunk_bounds, combined, digest_chunks, sha256_of
from learner.parallel.disputes import FirstAttempt, Layout, attribute, find_dispute, uneven_dispute, watched_chunks
from learner.parallel.faults import Tamper
from learner.parallel.group import NO_STEP, Closed, Effort, Replicated, audit_dispute
from learner.parallel.ledger import Step, all_good, words_of_step
from learner.parallel.pieces import PIECES_PER_WORD, from_pieces, to_pieces
from learner.parallel.process_group import ProcessGroup
from learner.parallel.verdict import Recomputed, alike
from learner.reports import Dispute

CLOSING_WORDS = 7  # steps, suspicion, two of the state's digest, audited step + 1 (0 = none), two audit digests
LARGE_ELEMENTS = 4_000_000  # above, sums cost 2 % of a step, so buckets take turns; digests never do
ROTATION = 4


def _unweighed() -> Measured:
    """Of a bucket whose turn it is not: any sum passes."""
    return Measured(0.0, math.inf, 0.0)


def _nothing() -> float:
    return 0.0


class VerifiedGroup:
    """One rank's side of a group of two or more. See `Group` for the calls."""

    def __init__(
        self,
        group: ProcessGroup,
        parameters: FlatParameters,
        clock: Clock,
        tamper: Tamper,
        *,
        bucket_elements: int,
        compares: bool,
    ) -> None:
        self.ranks, self.place = group.ranks, group.place
        self.compares = compares
        self.effort = Effort()
        self._group = group
        self._parameters = parameters
        self._clock = clock
        self._tamper = tamper
        self._buckets = plan_buckets(parameters.manifest, bucket_elements)
        self._num_words = words_of_step(len(self._buckets))
        num_tail = len(self.ranks) * self._num_words * PIECES_PER_WORD
        parameters.reserve_tail(num_tail)
        self._tail = parameters.gradient_and_tail[parameters.num_elements :]
        self._chunks = plan_chunks(self._buckets, num_tail)
        self._on_host = self._tail.device.type == "cpu"
        self._tail_host = self._tail.cpu().numpy().reshape(len(self.ranks), -1)  # on a CPU, the tail itself
        self._values = [parameters.gradient[bucket.start : bucket.stop] for bucket in self._buckets]
        self._scales = [Scale(values) for values in self._values]
        whole = parameters.gradient_and_tail
        self._sent = [whole[b.start :] if b.index == 0 else whole[b.start : b.stop] for b in self._buckets]
        bounds = [[(c.start, c.stop) for c in self._chunks if c.bucket == b.index] for b in self._buckets]
        self._digesters = [Digester(whole, each) for each in bounds]
        self._tails: list[NDArray[np.float32]] = []
        self._layout = Layout(
            ranks=self.ranks, manifest=parameters.manifest, buckets=self._buckets, chunks=self._chunks
        )
        self._order = BackwardOrder(parameters, self._buckets, self._send)
        self._handles: list[Any] = []
        self._weights: dict[int, Callable[[], Measured]] = {}
        self._every = ROTATION if parameters.num_elements > LARGE_ELEMENTS else 1
        self._steps: list[Step] = []
        self._suspicious = False
        self._square = 0.0
        self._watched = False
        self._local: dict[int, NDArray[np.uint64]] = {}
        self._recomputed: tuple[int, Recomputed] | None = None
        self._first: FirstAttempt | None = None
        self._first_update = -1

    # ---- an update -------------------------------------------------------------------------------------------------

    def begin_update(self, update: int) -> None:
        """Forget the steps of the attempt before, but for what a dispute about the same update left behind."""
        self.effort = Effort()
        self._steps = []
        self._tails = []
        self._suspicious = False
        self._square = 0.0
        self._recomputed = None
        self._fill_tail(0.0)
        if update != self._first_update:
            self._first, self._first_update = None, update
        self._tamper.began(update)

    def exchange(self, numbers: NDArray[np.float64]) -> NDArray[np.float64]:
        """One gather, bit for bit."""
        return self._gather(numbers.view(np.uint64)).view(np.float64)

    def recomputed(self, step: int, result: Recomputed) -> None:
        """Kept for the close."""
        self._recomputed = (step, result)

    def close_update(self, replicated: Replicated, extra: NDArray[np.float64]) -> Closed:
        """One gather: words on the last step, the state's digest, suspicions and audits of all ranks."""
        num_words = self._num_words
        start_ns = thread_cpu_ns()
        self._suspicious = not self._settle()
        last = self._steps[-1].words() if self._steps else np.zeros(num_words, dtype=np.uint64)
        self.effort.verify_ns += thread_cpu_ns() - start_ns
        heard = self._gather(np.concatenate([self._closing_words(replicated), last, extra.view(np.uint64)]))
        closing, rest = heard[:, :CLOSING_WORDS], heard[:, CLOSING_WORDS:]
        if self._steps:
            self._steps[-1].heard = rest[:, :num_words].copy()
        extras = np.ascontiguousarray(rest[:, num_words:]).view(np.float64)
        return self._verdict(closing, replicated, extras)

    def _closing_words(self, replicated: Replicated) -> NDArray[np.uint64]:
        step, audit = self._recomputed or (NO_STEP, Recomputed(first=0, second=0))
        low, high = replicated.digest & 0xFFFFFFFFFFFFFFFF, replicated.digest >> 64
        words = [len(self._steps), self._suspicious, low, high, step + 1, audit.first, audit.second]
        return np.array(words, dtype=np.uint64)

    def _verdict(self, closing: NDArray[np.uint64], replicated: Replicated, extra: NDArray[np.float64]) -> Closed:
        """Follows from what all heard, and from reduced bits that are alike wherever the digests in it are."""
        start_ns = thread_cpu_ns()
        good = alike(closing[:, :1]) and alike(closing[:, 2:4]) and not closing[:, 1].any()
        good = good and (not self._steps or self._steps[-1].is_good())
        audits = {
            rank: Recomputed(first=int(words[5]), second=int(words[6]))
            for rank, words in zip(self.ranks, closing, strict=True)
            if words[4]
        }
        self.effort.verify_ns += thread_cpu_ns() - start_ns
        if not good:
            return Closed(extra=extra, dispute=self._find(closing, replicated), audited=bool(audits))
        dispute, attribution = audit_dispute(int(closing[:, 4].max()) - 1, audits)
        if dispute is None and self._first is not None:
            attribution = attribute(self._first, self._steps, replicated, self._layout)
            self._first = None
        return Closed(
            extra=extra,
            dispute=dispute,
            attribution=attribution,
            verified_steps=len(self._steps),
            audited=bool(audits),
        )

    def _find(self, closing: NDArray[np.uint64], replicated: Replicated) -> Dispute:
        lengths = closing[:, 0]
        if alike(lengths[:, None]):
            self._first = find_dispute(self._gather, self._steps, replicated, self._layout)
        else:
            self._first = uneven_dispute(lengths, self._layout)
        return self._first.dispute

    def _gather(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        start_ns = self._clock.now_ns()
        heard = self._group.gather(words)
        self.effort.exchange_ns += self._clock.now_ns() - start_ns
        return heard

    def leave(self) -> None:
        """Close the connections; hooks go too."""
        self._order.close()
        self._handles.clear()
        self._group.abort()

    # ---- a step ----------------------------------------------------------------------------------------------------

    def begin_step(self, *, watched: bool = False) -> None:
        """The tail already holds this rank's words on the step before."""
        self._watched = watched
        self._handles = []
        self._weights = dict.fromkeys(range(len(self._buckets)), _unweighed)
        self._order.begin()

    def _weighs(self, bucket: Bucket, number: int) -> bool:
        """Every bucket at every step, but for large gradients a quarter of the buckets in turn."""
        return self._every == 1 or bucket.index % self._every == number % self._every

    def _send(self, bucket: Bucket) -> None:
        """Weigh a complete bucket and start its reduce. Called from within the backward pass."""
        number, values = len(self._steps), self._values[bucket.index]
        self._tamper.computed(number, bucket.start, values)
        start_ns = thread_cpu_ns()
        if self._weighs(bucket, number):
            self._weights[bucket.index] = self._scales[bucket.index].measure()
        if self._watched:
            self._local[bucket.index] = digest_chunks(values, chunk_bounds(0, len(values)))
        self.effort.verify_ns += thread_cpu_ns() - start_ns
        self._tamper.sent(number, bucket.start, values)
        sent = self._sent[bucket.index]
        self.effort.reduced_bytes += sent.numel() * sent.element_size()
        self._handles.append(self._group.begin_sum(sent))

    def finish_step(self) -> None:
        """Wait for every bucket, digest and weigh it, and keep what its tail brought of the step before."""
        self._order.finish()
        number = len(self._steps)
        digests, came_out = [], []
        for bucket in self._buckets:
            start_ns = self._clock.now_ns()
            self._group.finish(self._handles[bucket.index])
            self.effort.reduce_ns += self._clock.now_ns() - start_ns
            self._tamper.received(number, bucket.start, self._sent[bucket.index])
            start_ns = thread_cpu_ns()
            digests.append(self._digesters[bucket.index]())
            came_out.append(self._scales[bucket.index].total() if self._weighs(bucket, number) else _nothing)
            self.effort.verify_ns += thread_cpu_ns() - start_ns
        start_ns = thread_cpu_ns()
        step = Step(
            number=number,
            put_in=[self._weights[bucket.index]() for bucket in self._buckets],
            came_out=[total() for total in came_out],
            chunk_digests=digests[0] if len(digests) == 1 else np.concatenate(digests[::-1]),  # as in the vector
        )
        self._keep(step)
        self.effort.verify_ns += thread_cpu_ns() - start_ns

    def _keep(self, step: Step) -> None:
        """Remember a step, and what its tail brought; put this rank's words on it into the tail of the next one."""
        for chunk in watched_chunks(self._first, step):
            bounds = self._chunks[chunk]
            step.sha256[chunk] = sha256_of(self._parameters.gradient_and_tail, (bounds.start, bounds.stop))
        self._steps.append(step)
        self._tails.append(self._tail_host.copy() if self._on_host else self._tail.cpu().numpy())
        self._note_norm(step)
        self._fill_tail(to_pieces(step.packed()))

    def _note_norm(self, step: Step) -> None:
        """Of this rank's gradient; where buckets take turns, put together from as many steps as they take."""
        self._square += sum(each.square for each in step.put_in)
        if step.number % self._every == self._every - 1:
            self.effort.norms.append(math.sqrt(self._square))
            self._square = 0.0

    def _fill_tail(self, own: NDArray[np.float32] | float) -> None:
        """This rank's slot; all others are zero."""
        self._tail_host.fill(0.0)
        self._tail_host[self.place] = own
        if not self._on_host:
            self._tail.copy_(torch.from_numpy(self._tail_host.reshape(-1)))

    def _settle(self) -> bool:
        """Read what the tails have brought of every step but the last; whether all of it is good."""
        if len(self._steps) < 2:
            return True
        heard = from_pieces(np.stack(self._tails[1:]))
        if heard is None:
            return False
        for step, words in zip(self._steps, heard, strict=False):
            step.heard = words
        return all_good(heard, np.array([step.came_out for step in self._steps[:-1]]))

    # ---- audits ----------------------------------------------------------------------------------------------------

    def local_digest(self) -> int:
        """Of the last watched step, bucket by bucket."""
        return combined(np.concatenate([self._local[bucket.index] for bucket in self._buckets]), 0)

    def digest_gradient(self) -> int:
        """The same of what the flat gradient holds now."""
        digests = [digest_chunks(part, chunk_bounds(0, len(part))) for part in self._values]
        return combined(np.concatenate(digests), 0)
