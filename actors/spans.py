"""What an actor has to say of a fragment to a tracing system."""

from __future__ import annotations

from common.fragment import FragmentSummary
from common.spans import SpanIdentity, SpanName, SpanRecord


def rollout_span(identity: SpanIdentity, made: FragmentSummary) -> SpanRecord:
    """The steps that filled a fragment, policy and environments; sealing and handing over are part of its transfer."""
    return SpanRecord(
        name=SpanName.ROLLOUT,
        ref=identity.rollout(
            actor=made.actor,
            incarnation=made.incarnation,
            lease=made.lease,
            sequence=made.sequence,
            term=made.term,
            update=made.update,
        ),
        start_ns=made.start_ns,
        end_ns=made.end_ns,
        attributes={
            "truestep.actor": made.actor,
            "truestep.incarnation": made.incarnation,
            "truestep.lease": made.lease,
            "truestep.sequence": made.sequence,
            "truestep.term": made.term,
            "truestep.version": made.version,
            "truestep.update": made.update,
            "truestep.valid": made.num_valid,
            "truestep.bytes": made.num_bytes,
        },
    )
