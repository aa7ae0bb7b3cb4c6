"""What a drill takes for detected and located: events of a run's record, by hand."""

from __future__ import annotations

from typing import Any

import pytest

from common.ledger import TRAINED, Ledger, LedgerFragment
from deploy.actor_drills import ACTOR_DRILLS, AT_COLLECT, NODE, ROWS
from deploy.actor_drills import AT_STEP as AT_ENV_STEP
from deploy.drill import actor_drill_config, drill_config
from deploy.drill_plan import DROPPED, VICTIM, DrillPlan, Event
from deploy.drill_verdict import agree
from deploy.drills import DRILLS, named
from deploy.rank_drills import AT_STEP, AT_UPDATE, AUDITED_STEP, STEPS

ATTRIBUTED: dict[str, Any] = {"ranks": [VICTIM], "fault": "digest", "step": AT_STEP, "bucket": 0, "chunks": [0]}
TRACEBACK = "sabotaged.py, line 50 ... a drill: this environment was told to raise"


def attributed(**changes: Any) -> list[Event]:
    """A record in which a dispute was attributed."""
    return [("SYNC_MISMATCH", {}), ("SYNC_ATTRIBUTED", ATTRIBUTED | changes)]


def drill(name: str) -> DrillPlan:
    plan = named(name)
    assert plan is not None
    return plan


def located(name: str, events: list[Event]) -> str:
    return drill(name).located(events)


def test_the_right_rank_and_step_are_a_location() -> None:
    """Rank, step, bucket and chunk, in words."""
    assert located("flip-bit", attributed()) == f"rank {VICTIM}, step {AT_STEP}, bucket 0, chunk 0"


@pytest.mark.parametrize(
    "changes",
    [{"ranks": [0]}, {"ranks": [0, VICTIM]}, {"ranks": "unattributed"}, {"step": AT_STEP + 1}],
    ids=["another rank", "both ranks", "nobody", "another step"],
)
def test_anything_else_is_none(changes: dict[str, Any]) -> None:
    """To name the wrong rank, or one more, is worse than to name nobody."""
    assert located("flip-bit", attributed(**changes)) == ""


def test_what_was_changed_on_the_way_is_nobodys() -> None:
    """The place must be known and no rank blamed."""
    on_the_way = attributed(ranks="unattributed", fault="conservation")
    assert located("flip-outgoing", on_the_way) == f"between ranks, step {AT_STEP}, bucket 0, chunk 0"
    assert located("flip-outgoing", attributed(fault="conservation")) == ""
    assert located("flip-outgoing", attributed(ranks="unattributed", chunks=[])) == ""


def test_a_dispute_about_states_has_no_step() -> None:
    """It says what it was about instead."""
    states = attributed(fault="parameters", step=-1, bucket=-1, chunks=[0, 2])
    assert located("flip-parameter", states) == f"rank {VICTIM}, parameters, chunk 0, chunk 2"


@pytest.mark.parametrize(
    ("name", "kind", "key"), [("kill-rank", "RANK_LOST", "rank"), ("kill-actor", "ACTOR_LOST", "actor")]
)
def test_the_loss_of_another_process_is_no_location(name: str, kind: str, key: str) -> None:
    """The victim, and nobody besides."""
    assert located(name, [(kind, {key: VICTIM})]) == f"{key} {VICTIM}"
    assert located(name, [(kind, {key: 0})]) == ""
    assert located(name, [(kind, {key: VICTIM}), (kind, {key: 0})]) == ""


def test_a_dispute_about_something_else_does_not_detect_a_fault() -> None:
    """Of another kind, or of another update."""
    detected = drill("flip-bit").detected
    assert detected({"update": AT_UPDATE, "disputes": [{"fault": "digest"}]})
    assert not detected({"update": AT_UPDATE, "disputes": [{"fault": "parameters"}]})
    assert not detected({"update": AT_UPDATE + 1, "disputes": [{"fault": "digest"}]})


# ---- of actors -----------------------------------------------------------------------------------------------------


def raised(**changes: Any) -> Event:
    cause = "environment 'X', actor 1, lane 0, tick 170: step raised RuntimeError"
    return "ACTOR_LOST", {"actor": VICTIM, "cause": cause, "detail": TRACEBACK} | changes


def test_an_environment_that_raises_is_located_by_lane_tick_and_its_own_traceback() -> None:
    """Each of these words has to be there, and no other actor may be lost besides."""
    assert located("raise-env", [raised()]) == "actor 1, lane 0, tick 170"
    assert located("raise-env", [raised(detail="")]) == ""
    assert located("raise-env", [raised(cause="the process ended")]) == ""
    assert located("raise-env", [raised(), raised(actor=0)]) == ""


def test_a_cut_node_is_located_by_all_of_its_actors() -> None:
    """Not by one of them, and not by more."""
    events: list[Event] = [("ACTOR_LOST", {"actor": actor}) for actor in (2, 1)]
    assert located("cut-node", events) == "actors 1, 2"
    assert located("cut-node", events[:1]) == ""
    assert located("cut-node", [*events, ("ACTOR_LOST", {"actor": 0})]) == ""


def test_a_slow_actor_is_located_by_what_of_it_was_too_old() -> None:
    """Others may be late too; what was dropped for another reason is not about it."""
    late: dict[str, Any] = {"actor": VICTIM, "sequence": 9, "reason": "stale"}
    others: list[Event] = [(DROPPED, late | {"actor": 0}), (DROPPED, late | {"reason": "old_lease"})]
    assert located("slow-actor", [(DROPPED, late), *others]) == "actor 1, fragment 9"
    assert located("slow-actor", others) == ""


def test_refused_frames_are_located_by_their_fragments() -> None:
    """Of one actor; anything else that is refused at the border is not what the drill did."""
    detail = "actor 2, incarnation 0, sequence 5 came in the place of actor 2, incarnation 0, sequence 4"
    refused: dict[str, Any] = {"actor": 2, "detail": detail, "reason": "misplaced"}
    events: list[Event] = [("FRAGMENT_REFUSED", refused), ("FRAGMENT_REFUSED", refused)]
    assert located("reorder-fragments", events) == "actor 2, fragment 4, 4"
    assert located("reorder-fragments", [*events, ("FRAGMENT_REFUSED", refused | {"actor": 0})]) == ""
    assert drill("duplicate-fragment").detected(refused)
    assert not drill("duplicate-fragment").detected(refused | {"reason": "corrupt"})


def fragment(sequence: int, fate: str = TRAINED) -> LedgerFragment:
    return LedgerFragment(
        actor=0,
        incarnation=0,
        sequence=sequence,
        term=0,
        weights=0,
        num_valid=10,
        digest=0,
        decided_in=0,
        update=1,
        place=-1,
        fate=fate,
    )


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"trained": 10}, False),
        ({"dropped": {}}, False),
        ({"dropped": {"stale": 10, "old_lease": 10}}, False),
        ({"fragments_lost": 0}, False),
    ],
    ids=["alike", "less trained", "less dropped", "dropped and not in the ledger", "lost and not counted"],
)
def test_what_was_counted_is_held_against_what_was_named(changes: dict[str, Any], expected: bool) -> None:
    """Two trained fragments and a stale one in the ledger, one lost in the events."""
    ledger = Ledger(fragments=(fragment(0), fragment(1), fragment(2, "stale")), updates=())
    accounts: dict[str, Any] = {"trained": 20, "dropped": {"stale": 10}, "fragments_lost": 1}
    events: list[Event] = [("ACTOR_LOST", {"fragments_lost": 1}), ("ACCOUNTS", accounts | changes)]
    assert agree(events, ledger) is expected


# ---- all -----------------------------------------------------------------------------------------------------------


def test_drills_have_names_of_their_own_and_come_to_pass() -> None:
    """The update is within the run, and audited at the step that is to be wrong; the victim is the audited rank."""
    config = drill_config()
    assert len({plan.name for plan in DRILLS}) == len(DRILLS) >= 16
    assert config.horizon_updates > AT_UPDATE
    every = config.learner.sync.audit_every
    assert AT_UPDATE % every == 0 and AT_UPDATE // every % config.learner.ranks == VICTIM
    assert config.ppo.epochs * round(config.rows_per_update / config.ppo.minibatch) == STEPS
    assert AT_STEP < STEPS and AUDITED_STEP < STEPS and AT_STEP != AUDITED_STEP


def test_drills_of_actors_run_at_their_own_pace_and_leave_one_who_is_well() -> None:
    """An update has two fragments of one actor; no environment of a proof (80 steps) comes to the fault."""
    config = actor_drill_config()
    assert config.asynchronous and config.learner.ranks == 1
    assert config.fragments_per_update > config.actors.num > len(NODE)
    assert config.actors.rows == ROWS and AT_ENV_STEP == AT_COLLECT * ROWS > 80
    assert {plan.name for plan in ACTOR_DRILLS} == {
        "raise-env",
        "hang-env",
        "slow-actor",
        "kill-actor",
        "cut-node",
        "duplicate-fragment",
        "reorder-fragments",
    }
