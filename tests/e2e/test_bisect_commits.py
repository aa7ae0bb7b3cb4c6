"""A change of rounding in the learner, planted in one of sixteen commits of truestep itself, is found."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import deploy
from deploy.bisect import Trial, bisect
from deploy.session import train
from tests.deploy.test_facts import git
from tests.deploy.test_reproduce import config, one_thread

__all__ = ["one_thread"]  # a fixture of this module too

COMMITS = 16
PLANTED = 6
DOES_NOT_START = (7, 8)
BEFORE = "        self._adam.step()\n"
AFTER = "        self._vector.grad *= 1.0 + 2.0**-23\n        self._adam.step()\n"


def history(place: Path) -> list[str]:
    """Sixteen commits of the four packages: one changes rounding, two cannot be started, the others are harmless."""
    git(place, "init", "-q", "-b", "main")
    root = Path(deploy.__file__).parents[1]
    for package in ("actors", "common", "deploy", "learner"):
        shutil.copytree(root / package, place / package, ignore=shutil.ignore_patterns("__pycache__"))
    optimiser, cli = place / "learner" / "optimiser.py", place / "deploy" / "cli.py"
    sound = cli.read_text()
    commits = []
    for number in range(COMMITS):
        if number == PLANTED:
            text = optimiser.read_text()
            assert text.count(BEFORE) == 1
            optimiser.write_text(text.replace(BEFORE, AFTER))
        cli.write_text("this is no Python\n" if number in DOES_NOT_START else sound)
        (place / "learner" / "notes.py").write_text(f'"""Note {number}."""\n')
        git(place, "add", ".")
        git(place, "commit", "-q", "-m", f"commit {number}")
        commits.append(git(place, "rev-parse", "HEAD"))
    return commits


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commit_that_changed_rounding_is_named(tmp_path: Path) -> None:
    """Each commit makes the run again with its own code, whatever is imported here; the repository stays as it was."""
    out, repository = tmp_path / "runs", tmp_path / "repository"
    assert train(config(steps=300), out=out, run="r").status == "finished"
    repository.mkdir()
    commits = history(repository)
    before = git(repository, "status", "--porcelain", "--branch"), git(repository, "for-each-ref")
    found = bisect(Trial(run="r", out=out, updates=1, deadline_s=120.0), f"{commits[0]}..main", repo=repository)
    assert (found.first_bad, found.subject) == (commits[PLANTED], f"commit {PLANTED}"), found.steps
    assert any("skip: exit code 1" in step for step in found.steps)
    assert any("bad: identical through update 0, then another update" in step for step in found.steps)
    assert git(repository, "worktree", "list").count("\n") == 0
    assert (git(repository, "status", "--porcelain", "--branch"), git(repository, "for-each-ref")) == before
