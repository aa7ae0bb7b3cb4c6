"""What tests of ranks leave behind, and what they do not depend on."""

import os
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from learner.parallel.process_group import ProcessGroup
from learner.parallel.verified import VerifiedGroup

# Where ranks meet, torch asks the resolver for the name of everyone who connects; one that loses a query makes that
# wait 5 s. No test depends on the resolver: here it has one second and one try.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"


@pytest.fixture(autouse=True)
def groups_end_with_their_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A thread of Gloo looks around a hundred times a second as long as its group lives: a thousand are a busy core.

    A rank that is dropped leaves its group to the hooks in autograd, which nothing collects.
    """
    verified: weakref.WeakSet[VerifiedGroup] = weakref.WeakSet()
    plain: weakref.WeakSet[ProcessGroup] = weakref.WeakSet()
    for kind, made in ((VerifiedGroup, verified), (ProcessGroup, plain)):
        monkeypatch.setattr(kind, "__init__", _noted(kind.__init__, made))
    yield
    for group in list(verified):
        group.leave()
    for group in list(plain):
        group.abort()


def _noted(begin: Any, made: weakref.WeakSet[Any]) -> Any:
    def noted(group: Any, *arguments: Any, **options: Any) -> None:
        begin(group, *arguments, **options)
        made.add(group)

    return noted
