"""What comes out of the group of ranks for the run as a whole to decide on."""

from __future__ import annotations

from dataclasses import dataclass

from common.errors import RunFailedError
from deploy.conductor.orders import Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An order was made, agreed on by every rank that it went to: it is to be committed."""

    order: Order


@dataclass(frozen=True, slots=True, kw_only=True)
class Voided:
    """Neither `update` nor what was ordered behind it was made: their fragments are needed again."""

    update: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """The group is formed and stands alike: it is to publish, or to go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Astray:
    """No rank is left whose state can be trusted: the run is to go back to one that can."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Nothing will mend this; the error's message is the verdict."""

    error: RunFailedError


Outcome = Made | Voided | Joined | Astray | Ended
