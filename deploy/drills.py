"""The drills there are."""

from __future__ import annotations

from deploy.actor_drills import ACTOR_DRILLS
from deploy.drill_plan import DrillPlan
from deploy.rank_drills import RANK_DRILLS

__all__ = ["DRILLS", "DrillPlan", "named"]

DRILLS = (*RANK_DRILLS, *ACTOR_DRILLS)


def named(name: str) -> DrillPlan | None:
    """The drill of that name."""
    return next((plan for plan in DRILLS if plan.name == name), None)
