"""Several ranks in the threads of one process, over real Gloo connections: for tests of what they do together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from common.clock import MonotonicClock
from learner.parallel.faults import RankFault
from learner.rank import LearnerRank, RankConfig
from learner.reports import Formation, FragmentKey, UpdateOrder, UpdateReport, share_of

T = TypeVar("T")
LIMIT_S = 60.0


def together(calls: Sequence[Callable[[], T]], *, limit_s: float = LIMIT_S) -> list[T]:
    """Make one call in each of several threads; their results, or the first exception. Fails after `limit_s`."""
    results: dict[int, T] = {}
    errors: dict[int, BaseException] = {}

    def work(number: int) -> None:
        torch.set_num_threads(1)
        try:
            results[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            errors[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a rank still waits"
    for number in sorted(errors):
        raise errors[number]
    return [results[number] for number in range(len(calls))]


class Ranks:
    """A group of learner ranks as a driver has it: all get the same orders, each its share of the documents."""

    def __init__(self, config: RankConfig, num_ranks: int, faults: Sequence[RankFault] = ()) -> None:
        clock = MonotonicClock()
        self.ranks = [
            LearnerRank(config, clock, rank=rank, faults=tuple(fault for fault in faults if fault.rank == rank))
            for rank in range(num_ranks)
        ]
        self.formation = 0
        self.attempt = 0
        self.version = 1

    def form(self) -> None:
        """Join all ranks, and have every one know the version published."""
        self.formation += 1
        address = self.ranks[0].open_meeting()
        formation = Formation(number=self.formation, ranks=tuple(range(len(self.ranks))), address=address)
        together([lambda rank=rank: rank.join(formation) for rank in self.ranks])
        for rank in self.ranks:
            rank.publish(version=self.version, term=0)

    def update(self, update: int, documents: Sequence[Any], **order: Any) -> list[UpdateReport]:
        """One attempt at an update; the reports of all ranks, in order."""
        self.attempt += 1
        number = len(self.ranks)
        told = UpdateOrder(
            update=update, term=0, publish_as=self.version + 1, attempt=self.attempt, **({"keys": ()} | order)
        )
        shares = [share_of(len(documents), place, number) for place in range(number)]
        audited = [documents[i] for i in shares[told.audit.audited]] if told.audit else []
        calls = [
            lambda rank=rank, share=share: rank.update(told, [documents[i] for i in share], audited)[0]
            for rank, share in zip(self.ranks, shares, strict=True)
        ]
        reports = together(calls)
        if all(report.status == "made" for report in reports):
            self.version += 1
        return reports


def keys_of(summaries: Sequence[tuple[int, int, int]]) -> tuple[FragmentKey, ...]:
    """Keys from (actor, incarnation, sequence)."""
    return tuple(FragmentKey(actor=a, incarnation=i, sequence=s) for a, i, s in summaries)
