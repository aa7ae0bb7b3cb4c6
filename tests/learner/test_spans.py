"""What a learner rank tells a tracing system of an order: intervals worked out by hand, names that actors know."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from common.clock import ManualClock
from common.fragment import FragmentHeader
from common.spans import SpanIdentity, SpanName, SpanRecord
from learner.rank import LearnerRank
from learner.reporting import Timeline
from learner.reports import Formation, FragmentVerdict, OrderStatus, SyncReport, UpdateOrder, UpdateReport
from learner.spans import update_spans
from tests.support import HEADER, document, layout, rank_config

IDENTITY = SpanIdentity(run="test", synchronous=True)
SHAPE = layout(6, 2)
US = 1_000


def header(**changes: Any) -> FragmentHeader:
    counts = {"num_rows": 6, "num_lanes": 2, "num_valid": 12}
    return FragmentHeader(**(HEADER | counts | changes))


TIMELINE = Timeline(
    begun_ns=100 * US,
    ended_ns=1000 * US,
    marks_ns=(110 * US, 200 * US, 800 * US, 900 * US, 990 * US),  # backup until 110, intake, learn, close, publish
    fragments=(header(actor=0, end_ns=50 * US), header(actor=1, end_ns=70 * US, clock_id="another host")),
)
REPORT = UpdateReport(
    rank=0,
    attempt=6,
    update=4,
    term=1,
    version=9,
    trained=True,
    verdicts=(
        FragmentVerdict(refusal="", detail="", num_valid=12),
        FragmentVerdict(refusal="stale", detail="", num_valid=0),
        FragmentVerdict(refusal="", detail="", num_valid=12),
    ),
    steps=8,
    skipped_steps=1,
    skipped_at="",
    lag=1,
    gaps=0,
    parameter_digest="",
    learning_rate=0.0,
    sync=SyncReport(verified_steps=8, seconds={"reduce": 200e-6, "verify": 50e-6, "backup": 10e-6}),
)


def spans(report: UpdateReport = REPORT, timeline: Timeline = TIMELINE, **changes: Any) -> dict[str, SpanRecord]:
    """By name, transfers with the number of their actor."""
    made = update_spans(IDENTITY, report, timeline, **({"clock_id": "manual", "published": True} | changes))
    return {f"{span.name}{span.attributes.get('truestep.actor', '')}": span for span in made}


def test_an_update_reaches_from_the_order_to_the_report() -> None:
    """And links to the rollouts of the fragments that were accepted, by the names that their actors gave them."""
    update = spans()["update"]
    assert (update.start_ns, update.end_ns, update.failure) == (100 * US, 1000 * US, "")
    assert update.ref == IDENTITY.update(term=1, update=4, version=9, attempt=6, rank=0)
    assert update.links == tuple(
        IDENTITY.rollout(actor=actor, incarnation=0, lease="lease", sequence=0, term=0, update=0) for actor in (0, 1)
    )
    told = {key.removeprefix("truestep."): value for key, value in update.attributes.items()}
    assert told["status"] == "made"
    assert {key: told[key] for key in ("valid", "fragments", "refused", "lag", "steps", "skipped_steps")} == {
        "valid": 24,
        "fragments": 2,
        "refused": 1,
        "lag": 1,
        "steps": 8,
        "skipped_steps": 1,
    }


def test_sync_is_as_long_as_was_spent_and_ends_with_the_agreement() -> None:
    """200 µs of reduces and 50 µs of verification before 900; the backup lies before the fragments."""
    sync, update = spans()["sync"], spans()["update"]
    assert (sync.start_ns, sync.end_ns, sync.parent) == (650 * US, 900 * US, update.ref)
    assert sync.attributes["truestep.sync.reduce_seconds"] == 200e-6
    assert sync.attributes["truestep.sync.backup_seconds"] == 10e-6
    assert sync.attributes["truestep.sync.verified_steps"] == 8


def test_sync_that_overlaps_the_backward_pass_is_not_drawn_into_the_intake() -> None:
    """A thread of its own may have been busy for longer than learning took."""
    slow = replace(REPORT, sync=SyncReport(seconds={"reduce": 1.0}))
    assert spans(slow)["sync"].start_ns == 200 * US


def test_publish_is_told_by_the_rank_that_made_the_document_only() -> None:
    """The last of the marks."""
    publish = spans()["publish"]
    assert (publish.start_ns, publish.end_ns, publish.parent) == (900 * US, 990 * US, spans()["update"].ref)
    assert "publish" not in spans(published=False)


def test_a_transfer_reaches_from_the_rollout_to_the_end_of_intake() -> None:
    """On one host. It follows from the rollout and links to the update that took the fragment."""
    transfer, update = spans()["transfer0"], spans()["update"]
    assert (transfer.start_ns, transfer.end_ns) == (50 * US, 200 * US)
    assert (transfer.parent, transfer.links) == (update.links[0], (update.ref,))
    assert transfer.ref == update.links[0].part(SpanName.TRANSFER)
    assert transfer.attributes["truestep.transfer.other_host"] is False


def test_clocks_of_two_hosts_are_not_compared() -> None:
    """Of such a transfer the rank's part is shown, and said to be no more."""
    transfer = spans()["transfer1"]
    assert (transfer.start_ns, transfer.end_ns) == (100 * US, 200 * US)
    assert transfer.attributes["truestep.transfer.other_host"] is True


@pytest.mark.parametrize(
    ("status", "failure", "told"),
    [
        (OrderStatus.FAILED, "reduce of step 3: rank 1 did not come", "reduce of step 3: rank 1 did not come"),
        (OrderStatus.DISPUTED, "", "disputed"),
        (OrderStatus.OUT_OF_STEP, "", "out_of_step"),
    ],
)
def test_an_order_that_changed_nothing_is_an_update_that_failed(status: OrderStatus, failure: str, told: str) -> None:
    """And nothing besides: its fragments come again."""
    report = replace(REPORT, status=status, sync=SyncReport(failure=failure), verdicts=())
    made = spans(report, Timeline(begun_ns=1, ended_ns=2))
    assert [*made] == ["update"]
    assert (made["update"].failure, made["update"].links) == (told, ())


class Ticking(ManualClock):
    """A microsecond passes with each reading."""

    def now_ns(self) -> int:
        self.advance(1e-6)
        return super().now_ns()


def test_the_timeline_of_a_rank_agrees_with_its_report() -> None:
    """Marks lie within the order, their distances are the report's seconds, and the headers are those it was given."""
    rank = LearnerRank(rank_config(SHAPE), Ticking())
    rank.join(Formation(number=1, ranks=(0,)))
    rank.publish(version=0, term=0)
    frame = document(SHAPE, header={"lease": "9f2c"})
    report, _ = rank.update(UpdateOrder(update=0, term=0, publish_as=1), [frame])
    timeline = rank.timeline()
    marks = timeline.marks_ns
    assert [*marks] == sorted({timeline.begun_ns, *marks, timeline.ended_ns})[1:-1]
    assert [round(seconds * 1e9) for seconds in report.seconds.values()] == [
        after - before for before, after in pairwise(marks)
    ]
    assert [made.lease for made in timeline.fragments] == ["9f2c"]


def test_an_order_that_was_not_carried_out_leaves_no_fragments_of_the_one_before() -> None:
    """Its timeline has a beginning and an end."""
    rank = LearnerRank(rank_config(SHAPE), Ticking())
    rank.join(Formation(number=1, ranks=(0,)))
    rank.publish(version=0, term=0)
    rank.update(UpdateOrder(update=0, term=0, publish_as=1), [document(SHAPE)])
    report, _ = rank.update(UpdateOrder(update=7, term=0, publish_as=2), [])
    assert report.status is OrderStatus.OUT_OF_STEP
    assert (rank.timeline().marks_ns, rank.timeline().fragments) == ((), ())
    assert rank.timeline().ended_ns > rank.timeline().begun_ns
