"""What an actor tells a tracing system of a fragment."""

from __future__ import annotations

from actors.spans import rollout_span
from common.fragment import FragmentSummary
from common.spans import SpanIdentity, SpanName


def test_a_rollout_is_the_time_of_its_steps_under_the_name_of_its_fragment() -> None:
    """With what identifies the fragment, and the weights that made it."""
    made = FragmentSummary(
        actor=3,
        lease="9f2c",
        incarnation=1,
        sequence=17,
        term=2,
        version=20,
        update=18,
        num_valid=1000,
        num_voided=0,
        num_bytes=4096,
        episode_returns=(),
        episode_lengths=(),
        start_ns=500,
        end_ns=900,
        policy_ns=100,
        env_ns=200,
        gc_pause_ns=(),
    )
    identity = SpanIdentity(run="r", synchronous=True)
    span = rollout_span(identity, made)
    assert (span.name, span.start_ns, span.end_ns, span.parent) == (SpanName.ROLLOUT, 500, 900, None)
    assert span.ref == identity.rollout(actor=3, incarnation=1, lease="9f2c", sequence=17, term=2, update=18)
    assert span.attributes == {
        "truestep.actor": 3,
        "truestep.incarnation": 1,
        "truestep.lease": "9f2c",
        "truestep.sequence": 17,
        "truestep.term": 2,
        "truestep.version": 20,
        "truestep.update": 18,
        "truestep.valid": 1000,
        "truestep.bytes": 4096,
    }
