"""Errors: what a reader is told, what a program may rely on, and the way over a process border."""

from __future__ import annotations

import pickle

import pytest

from common import errors
from common.errors import ConfigError, TruestepError


def kinds(root: type[TruestepError] = TruestepError) -> list[type[TruestepError]]:
    """The whole tree, parents first."""
    return [root, *(kind for child in root.__subclasses__() for kind in kinds(child))]


def test_the_message_says_what_got_allowed_and_what_to_do() -> None:
    """In that order, on one line; long material stays out of it."""
    error = ConfigError("net.hidden", got=0, allowed="1 or more", fix="name a layer", detail="Traceback ...")
    assert str(error) == "net.hidden; got 0; allowed: 1 or more; name a layer"
    assert error.detail == "Traceback ..."


def test_what_is_not_said_leaves_no_trace() -> None:
    """Only the parts that were given appear; a falsy value is still a value."""
    assert str(ConfigError("lost")) == "lost"
    assert str(ConfigError("flag", got=False)) == "flag; got False"
    assert str(ConfigError("text", got="")) == "text; got "


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.__name__)
def test_every_error_crosses_a_process_border(kind: type[TruestepError]) -> None:
    """Pickling keeps class, message and every field; values travel as text, so nothing live goes along."""
    error = kind("what", got=object(), allowed=[1, 2], fix="fix", detail="detail")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == str(error)
    fields = ("what", "got", "allowed", "fix", "detail")
    assert [getattr(copy, name) for name in fields] == [getattr(error, name) for name in fields]


def test_exit_codes_are_the_contract_of_the_command() -> None:
    """What the caller can mend exits with 2, the rest with 1; one error asks to be tried again, with 75."""
    codes = (errors.EXIT_FINISHED, errors.EXIT_FAILED, errors.EXIT_BAD_INPUT, errors.EXIT_RESUMABLE)
    assert codes == (0, 1, 2, 75)
    for kind in kinds():
        other = 75 if kind.__name__ == "NotPlacedError" else 1  # of deploy/, which need not be there
        assert kind.exit_code == (2 if issubclass(kind, errors.UserError) else other), kind


def test_the_tree_drawn_at_the_top_of_the_module_is_the_tree() -> None:
    """Each class appears in the drawing under its parent's name."""
    drawn = [line.split("── ")[-1].split()[0] for line in (errors.__doc__ or "").splitlines() if "── " in line]
    assert sorted(drawn) == sorted(kind.__name__ for kind in kinds()[1:] if kind.__module__ == errors.__name__)
