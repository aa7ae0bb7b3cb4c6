"""Several ranks in the threads of one process, over real Gloo connections: for tests of what they do together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from common.clock import MonotonicClock
from common.errors import WireError
from common.fragment import FragmentLayout
from common.frames import decode_frame
from learner.parallel.faults import RankFault, Tamper, Untouched
from learner.rank import LearnerRank, RankConfig
from learner.reports import AuditOrder, Formation, FragmentKey, OrderStatus, UpdateOrder, UpdateReport, share_of
from tests.support import document

T = TypeVar("T")
LIMIT_S = 60.0


def together(calls: Sequence[Callable[[], T]], *, limit_s: float = LIMIT_S) -> list[T]:
    """Make one call in each of several threads; their results, or the first exception. Fails after `limit_s`."""
    results = settled(calls, limit_s=limit_s)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]


def settled(calls: Sequence[Callable[[], T]], *, limit_s: float = LIMIT_S) -> list[T | BaseException]:
    """The same, with the exceptions that were raised in the places of results."""
    results: dict[int, T | BaseException] = {}

    def work(number: int) -> None:
        torch.set_num_threads(1)
        try:
            results[number] = calls[number]()
        except BaseException as error:  # noqa: BLE001 - handed to the caller
            results[number] = error

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(len(calls))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit_s)
        assert not thread.is_alive(), "a rank still waits"
    return [results[number] for number in range(len(calls))]


def rollout(
    layout: FragmentLayout, update: int, *, actor: int = 0, num_valid: int | None = None, **arrays: Any
) -> NDArray[np.uint8]:
    """The fragment of an actor for `update`, made with the weights before it: random, of as many valid rows."""
    rng = np.random.default_rng([update, actor])
    rows = (layout.num_rows, layout.num_lanes)
    count = rows[0] * rows[1] if num_valid is None else num_valid
    random = {
        "obs": rng.standard_normal((rows[0] + 1, rows[1], *layout.observation["obs"].shape)),
        "action": rng.integers(0, 2, rows),
        "reward": rng.standard_normal(rows),
        "log_prob": np.full(rows, np.log(0.5)),
        "value": rng.standard_normal((rows[0] + 1, rows[1])),
        "valid": (np.arange(rows[0] * rows[1]) < count).reshape(rows),
    }
    header = {"actor": actor, "sequence": update, "version": update, "update": update}
    return document(layout, header=header, **(random | arrays))


@dataclass
class Ranks:
    """A group of learner ranks as a driver has it: all get the same orders, each its share of the documents.

    Update k publishes version k + 1.

    Attributes:
        faults: for the ranks that they name.
        tampers: other interference, by rank.
    """

    config: RankConfig
    num_ranks: int
    faults: Sequence[RankFault] = ()
    tampers: Mapping[int, Tamper] = field(default_factory=dict)

    def __post_init__(self) -> None:
        clock = MonotonicClock()
        self.ranks = [
            LearnerRank(
                self.config, clock, rank=rank, faults=tuple(fault for fault in self.faults if fault.rank == rank)
            )
            for rank in range(self.num_ranks)
        ]
        for rank, tamper in self.tampers.items():
            self.ranks[rank]._tamper = tamper  # a rank is made with faults; what no fault describes comes this way
        self.formation = 0
        self.attempt = 0
        self.form()
        for each in self.ranks:
            each.publish(version=0, term=0)

    def form(self) -> None:
        """Join all ranks, anew if they were a group before."""
        self.formation += 1
        address = self.ranks[0].open_meeting() if self.num_ranks > 1 else ""
        formation = Formation(number=self.formation, ranks=tuple(range(self.num_ranks)), address=address)
        together([lambda rank=rank: rank.join(formation) for rank in self.ranks])

    def settled(
        self, update: int, documents: Sequence[Any], *, audit: AuditOrder | None = None
    ) -> list[UpdateReport | BaseException]:
        """One attempt at an update; the reports of all ranks, in order, or what they raised."""
        self.attempt += 1
        keys = tuple(key_of(document, actor, update) for actor, document in enumerate(documents))
        order = UpdateOrder(update=update, term=0, publish_as=update + 1, attempt=self.attempt, keys=keys, audit=audit)
        shares = [share_of(len(documents), place, self.num_ranks) for place in range(self.num_ranks)]
        audited = [documents[i] for i in shares[audit.audited]] if audit else []
        return settled(
            [
                lambda rank=rank, share=share: rank.update(order, [documents[i] for i in share], audited)[0]
                for rank, share in zip(self.ranks, shares, strict=True)
            ]
        )

    def update(self, update: int, documents: Sequence[Any], *, audit: AuditOrder | None = None) -> list[UpdateReport]:
        """The same; fails if a rank raised, or if the ranks did not end alike."""
        reports = self.settled(update, documents, audit=audit)
        for report in reports:
            if isinstance(report, BaseException):
                raise report
        assert len({report.status for report in reports}) == 1, [report.status for report in reports]
        assert len({report.state_digest for report in reports}) == 1
        return reports

    def make(self, update: int, documents: Sequence[Any], *, audit: AuditOrder | None = None) -> list[UpdateReport]:
        """The same; fails unless the update was made."""
        reports = self.update(update, documents, audit=audit)
        assert {report.status for report in reports} == {OrderStatus.MADE}, reports[0]
        return reports

    def parameters(self, rank: int = 0) -> NDArray[np.float32]:
        """Of a rank; equal on all."""
        return self.ranks[rank].state().parameters


def key_of(document: Any, actor: int, update: int) -> FragmentKey:
    """What its header says; of a damaged one what was ordered."""
    try:
        header = decode_frame(document, kind="fragment").header
    except WireError:
        return FragmentKey(actor=actor, incarnation=0, sequence=update)
    return FragmentKey(actor=header["actor"], incarnation=header["incarnation"], sequence=header["sequence"])


class Interference(Untouched):
    """Calls `act` where a Tamper's method `where` is called at `step`, in the first attempt at each of `updates`."""

    def __init__(self, where: str, act: Callable[..., None], *, step: int = 0, updates: Sequence[int] = (0,)) -> None:
        self._where, self._act, self._step = where, act, step
        self._left = list(updates)
        self._armed = False
        setattr(self, where, self._interfere)

    def began(self, update: int) -> None:
        self._armed = update in self._left
        if self._armed:
            self._left.remove(update)

    def _interfere(self, step: int, *what: Any) -> None:
        if self._armed and step == self._step:
            self._act(*what)
