"""The first commit with which a run is not the same: found in a worktree, whatever some commits do, and cleaned up.

The commits here hold a `deploy` package that only answers, so that a bisection takes a second.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from common.errors import ConfigError, RunFailedError
from deploy import bisect as room
from deploy import bisect_step
from deploy.bisect import Bisection, Trial, bisect, bisection_lines
from tests.deploy.test_facts import git

ANSWER = """
import json, sys
from pathlib import Path
assert sys.argv[1:4] == ["reproduce", "r", "--out"], sys.argv
{before}
path = str(Path(__file__).resolve().parent)
print("a word before")
print(json.dumps({{"verdict": {verdict!r}, "identical_through": 4, "kind": "update", "why": "w",
                  "here": {{"sources": {{"deploy": {{"path": {path}}}}}}}}}))
"""
COMMITS = 16
FIRST_BAD = 11


def source(verdict: str, *, before: str = "", path: str = "path") -> str:
    return ANSWER.format(verdict=verdict, before=before, path=path)


def commit(repository: Path, name: str, text: str) -> str:
    (repository / "code" / "deploy" / "__main__.py").write_text(text)
    (repository / "code" / "name.txt").write_text(name)
    git(repository, "add", ".")
    git(repository, "commit", "-q", "-m", name)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    place = tmp_path / "repository"
    (place / "code" / "deploy").mkdir(parents=True)
    git(place, "init", "-q", "-b", "main")
    (place / "code" / "deploy" / "__init__.py").write_text("")
    return place


def sixteen(repository: Path, *, special: dict[int, str]) -> list[str]:
    """Commits of which those from FIRST_BAD on answer `different`, and those in `special` do as that says."""
    return [
        commit(repository, f"commit {number}", special.get(number) or source("identical" if good else "different"))
        for number in range(COMMITS)
        if (good := number < FIRST_BAD) is not None
    ]


def trial(tmp_path: Path, *, deadline_s: float = 30.0) -> Trial:
    return Trial(run="r", out=tmp_path / "out", updates=4, engine="inline", deadline_s=deadline_s)


def state_of(repository: Path) -> list[str]:
    """Everything of a checkout that a user would miss."""
    files = {file: file.read_bytes() for file in sorted((repository / "code").rglob("*")) if file.is_file()}
    asked = ["status", "--porcelain"], ["branch", "-a"], ["worktree", "list"], ["for-each-ref"], ["stash", "list"]
    return [repr(files), git(repository, "rev-parse", "HEAD"), *(git(repository, *words) for words in asked)]


def test_the_first_bad_commit_of_sixteen_is_found_and_nothing_is_left_behind(repository: Path, tmp_path: Path) -> None:
    """Commits that do not start are passed over; a user's checkout, with its changes, stays as it is."""
    special = {7: "import nowhere", 9: "no Python"}
    commits = sixteen(repository, special=special)
    (repository / "code" / "name.txt").write_text("not committed")
    (repository / "code" / "new.txt").write_text("not even added")
    before = state_of(repository)
    found = bisect(trial(tmp_path, deadline_s=3.0), f"{commits[0]}..main", repo=repository / "code")
    assert (found.first_bad, found.subject) == (commits[FIRST_BAD], f"commit {FIRST_BAD}")
    assert (found.candidates, found.exit_code) == ((commits[FIRST_BAD],), 0)
    assert state_of(repository) == before
    assert any("skip: exit code 1: ModuleNotFoundError: No module named 'nowhere'" in step for step in found.steps)
    assert len(found.steps) <= 8


def test_commits_that_cannot_be_judged_leave_the_answer_open(repository: Path, tmp_path: Path) -> None:
    """The candidates are told, newest first."""
    special = dict.fromkeys(range(9, 14), "import nowhere")
    commits = sixteen(repository, special=special)
    found = bisect(trial(tmp_path), f"{commits[0]}..{commits[-1]}", repo=repository / "code")
    assert (found.first_bad, found.exit_code) == ("", 1)
    assert found.candidates == tuple(reversed(commits[9:15]))
    assert bisection_lines(found)[0] == "open         one of 6 commits, most of which cannot be judged:"


def test_two_neighbours_need_no_search(repository: Path, tmp_path: Path) -> None:
    """Both ends are tried, and that is all."""
    commits = [commit(repository, name, source(name)) for name in ("identical", "different")]
    found = bisect(trial(tmp_path), f"{commits[0]}..{commits[1]}", repo=repository / "code")
    assert found.first_bad == commits[1]
    assert [step.partition(" ")[2] for step in found.steps] == [
        "good: identical through update 4",
        "bad: identical through update 4, then another update",
    ]


@pytest.mark.parametrize(("good", "bad", "which"), [("different", "different", 0), ("identical", "identical", 1)])
def test_ends_that_are_not_what_they_are_said_to_be_are_refused(
    repository: Path, tmp_path: Path, good: str, bad: str, which: int
) -> None:
    """No commit could be the answer; nothing is left behind."""
    commits = [commit(repository, f"{number}", source(verdict)) for number, verdict in enumerate((good, bad))]
    before = state_of(repository)
    with pytest.raises(ConfigError, match=f"commit {commits[which][:12]} is not {('good', 'bad')[which]}; got"):
        bisect(trial(tmp_path), f"{commits[0]}..{commits[1]}", repo=repository / "code")
    assert state_of(repository) == before


@pytest.mark.parametrize(
    "commits", ["", "main", "main..", "..main", "main..main", "main~1...main", "main..nowhere", "main..main~1"]
)
def test_words_that_name_no_range_are_refused(repository: Path, tmp_path: Path, commits: str) -> None:
    """Before a worktree is made; so is a range whose ends are the same, or turned around."""
    for name in ("identical", "different"):
        commit(repository, name, source(name))
    with pytest.raises(ConfigError, match=r"--bisect; got .*(GOOD\.\.BAD|a commit of)"):
        bisect(trial(tmp_path), commits, repo=repository)


def test_a_directory_that_no_repository_tracks_is_refused(repository: Path, tmp_path: Path) -> None:
    """Neither one without a repository nor one that it does not know."""
    with pytest.raises(ConfigError, match=r"needs a git repository.*--repo"):
        bisect(trial(tmp_path), "a..b", repo=tmp_path)
    commit(repository, "one", source("identical"))
    (repository / "unknown").mkdir()
    with pytest.raises(ConfigError, match="tracks the code"):
        bisect(trial(tmp_path), "a..b", repo=repository / "unknown")


def test_a_git_that_fails_is_named_and_the_worktree_is_removed(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the disk were full in the middle: a step that git itself does not understand."""
    commits = sixteen(repository, special={})
    before = state_of(repository)
    monkeypatch.setattr(room.Search, "_step", lambda self: ["sh", "-c", "exit 200"])
    monkeypatch.setattr(room.Search, "check_end", lambda self, commit, expected: None)
    with pytest.raises(RunFailedError, match="git bisect run failed"):
        bisect(trial(tmp_path), f"{commits[0]}..{commits[-1]}", repo=repository / "code")
    assert state_of(repository) == before


# One step


def step(tmp_path: Path, text: str, *, own: bool = True, deadline_s: float = 30.0) -> tuple[int, str]:
    place = tmp_path / "deploy"
    place.mkdir()
    (place / "__main__.py").write_text(text)
    command = [sys.executable, str(place / "__main__.py"), "reproduce", "r", "--out"]
    return bisect_step.step(command, tree=tmp_path, own=own, deadline_s=deadline_s)


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (source("identical"), 0, "identical through update 4"),
        (source("identical") + "sys.exit(1)", 0, "identical through update 4"),
        (source("different"), 1, "then another update"),
        (source("incomplete"), 125, "then w"),
        (source("identical", path="'elsewhere'"), 125, "not the truestep of this commit ran"),
        ("raise SystemExit('no such run')", 125, "exit code 1: no such run"),
        ("print('{}')", 125, "exit code 0: nothing was said"),
        ("print('[1]')", 125, "exit code 0"),
        ("", 125, "exit code 0"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 125, "exit code -9"),
    ],
)
def test_only_an_answer_judges_a_commit(tmp_path: Path, text: str, code: int, said: str) -> None:
    """Whatever the exit code: a traceback is no difference, and a truestep from elsewhere no witness."""
    got = step(tmp_path, text)
    assert got[0] == code
    assert said in got[1]


def test_the_truestep_of_a_users_repository_may_lie_elsewhere(tmp_path: Path) -> None:
    """There the environment is what is tried."""
    assert step(tmp_path, source("identical", path="'elsewhere'"), own=False)[0] == 0


def test_a_step_ends_what_does_not_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also a process that does not obey."""
    monkeypatch.setattr(bisect_step, "LEAVE_S", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert step(tmp_path, stubborn, deadline_s=0.5) == (125, "not done within 0.5 s")


def test_a_step_imports_nothing_of_truestep() -> None:
    """Run by path, it would shadow the modules of the commit, or they those of Python."""
    script = Path(bisect_step.__file__)
    told = subprocess.run(
        [sys.executable, "-P", "-v", str(script)], capture_output=True, text=True, cwd=script.parent, check=False
    ).stderr
    assert "import 'common" not in told and "import 'deploy" not in told and "import 'subprocess'" in told


def test_a_bisection_is_plain_and_in_words() -> None:
    """For JSON, and for people."""
    found = Bisection(first_bad="ab" * 20, subject="why", candidates=("ab" * 20,), steps=("s",))
    assert json.loads(json.dumps(found.to_plain()))["first_bad"] == "ab" * 20
    assert bisection_lines(found) == ["first bad    " + "ab" * 20 + " why"]
