"""Ray is asked what it has, and not waited for without end."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from common.errors import DeadlineError
from deploy.ray_resources import ASK_TIMES, Resources, ask

NEVER = threading.Event()


def lost(times: int) -> tuple[Callable[[], Resources], list[int]]:
    """A question whose first answers are lost; and how often it was asked."""
    asked: list[int] = []

    def question() -> Resources:
        asked.append(len(asked))
        if len(asked) <= times:
            NEVER.wait()
        return {"CPU": 3.0}

    return question, asked


def test_a_lost_answer_is_asked_for_again() -> None:
    """The second answer is the answer."""
    question, asked = lost(1)
    assert ask(question, within_s=0.05) == {"CPU": 3.0}
    assert len(asked) == 2


def test_a_cluster_that_never_answers_is_an_error() -> None:
    """After the last deadline, in words."""
    question, asked = lost(100)
    with pytest.raises(DeadlineError, match=f"does not say what it has; got no answer, asked {ASK_TIMES} times"):
        ask(question, within_s=0.05)
    assert len(asked) == ASK_TIMES


def test_what_the_question_raises_is_raised_here() -> None:
    """As it was, at once."""

    def question() -> Resources:
        raise ConnectionError("no head")

    with pytest.raises(ConnectionError, match="no head"):
        ask(question)
