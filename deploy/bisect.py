"""`truestep reproduce --bisect GOOD..BAD`: the first commit with which a run is not the same any more.

    worktree of the repository, beside the user's checkout ──► both ends tried ──► git bisect run ──► first bad commit

Each commit makes the run again with its own code (`deploy/bisect_step.py`). The worktree is removed whatever happens;
the user's checkout, index and branches are not touched.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from common.errors import EXIT_FAILED, EXIT_FINISHED, ConfigError, RunFailedError
from deploy import bisect_step
from deploy.display import Display, Silent
from deploy.facts import git_environment

GIT_S = 120.0  # for one command of git: a worktree of a large repository takes its time
SPARE_S = 60.0  # of a step beyond its deadline, for checkout and processes that end
ONLY_SKIPPED_LEFT = 2  # exit code of `git bisect run` where it cannot say which commit it is
GIT_OPTIONS = ("-c", f"core.hooksPath={os.devnull}", "-c", "advice.detachedHead=false")
HERE = Path(__file__).resolve().parents[1]  # what holds the four packages


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What every commit is asked to do.

    Attributes:
        run: to be made again.
        out: the output directory it lies in.
        updates: how many; None = all.
        engine: to make it with; None = the run's own.
        deadline_s: seconds that one commit may take.
    """

    run: str
    out: Path
    updates: int | None = None
    engine: str | None = None
    deadline_s: float = 600.0

    def words(self) -> list[str]:
        """The command, as it is carried out in the tree of a commit."""
        words = [sys.executable, "-m", "deploy", "reproduce", self.run, "--out", str(self.out.resolve()), "--json"]
        if self.updates is not None:
            words += ["--updates", str(self.updates)]
        if self.engine is not None:
            words += ["--engine", self.engine]
        return words


@dataclass(frozen=True, slots=True, kw_only=True)
class Bisection:
    """What came of it.

    Attributes:
        first_bad: the commit; "" if those that cannot be judged leave it open.
        subject: the first line of its message.
        candidates: commits that may be the first bad one, newest first; `first_bad` alone where it is known.
        steps: what was said of each commit that was tried, in order.
    """

    first_bad: str
    subject: str
    candidates: tuple[str, ...]
    steps: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 if the commit is known, else 1."""
        return EXIT_FINISHED if self.first_bad else EXIT_FAILED

    def to_plain(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "first_bad": self.first_bad,
            "subject": self.subject,
            "candidates": list(self.candidates),
            "steps": list(self.steps),
        }


def bisection_lines(result: Bisection) -> list[str]:
    """A bisection for people."""
    if result.first_bad:
        return [f"first bad    {result.first_bad} {result.subject}"]
    return [f"open         one of {len(result.candidates)} commits, most of which cannot be judged:"] + [
        f"             {commit}" for commit in result.candidates
    ]


def bisect(trial: Trial, commits: str, *, repo: Path | None = None, display: Display | None = None) -> Bisection:
    """Find the first commit with which the run of `trial` is not made again identically.

    Args:
        trial: what every commit is asked to do.
        commits: GOOD..BAD; GOOD must be an ancestor of BAD.
        repo: a directory in the repository to bisect, from which its code is imported; None = truestep's own.
        display: where the steps are told; nowhere by default.

    Raises:
        ConfigError: no repository, no such commits, or the ends are not what they are said to be.
        RunFailedError: git failed, or did not end.
    """
    display = display or Silent()
    place = HERE if repo is None else repo
    top, prefix = _repository(place)
    good, bad = _ends(top, commits)
    steps: list[str] = []

    def tell(line: str) -> None:
        if any(f" {word}: " in line for word in bisect_step.WORDS.values()):
            steps.append(line)
            display.tell(line)

    with _worktree(top, bad) as root:
        tree = root / prefix
        search = Search(root=root, tree=tree, own=(tree / "deploy").is_dir(), trial=trial, tell=tell)
        search.check_end(good, bisect_step.GOOD)
        search.check_end(bad, bisect_step.BAD)
        candidates = search.candidates_between(good, bad)
        subject = _git(root, "log", "-1", "--format=%s", candidates[0])
    known = len(candidates) == 1
    return Bisection(
        first_bad=candidates[0] if known else "",
        subject=subject if known else "",
        candidates=candidates,
        steps=tuple(steps),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search in a worktree.

    Attributes:
        root: of the worktree.
        tree: directory in it that the code is imported from.
        own: whether truestep itself lies there.
        trial: what every commit is asked to do.
        tell: takes each line that a step or git says.
    """

    root: Path
    tree: Path
    own: bool
    trial: Trial
    tell: Callable[[str], None]

    def check_end(self, commit: str, expected: int) -> None:
        """Try one end of the range. Raises ConfigError if it is not what it is said to be: no answer would be right."""
        _git(self.root, "checkout", "--quiet", "--force", "--detach", commit)
        code, said = self._run(self._step(), deadline_s=self.trial.deadline_s + SPARE_S)
        if code != expected:
            raise ConfigError(
                f"--bisect: commit {commit[:12]} is not {bisect_step.WORDS[expected]}",
                got=said[-1] if said else f"exit code {code}",
                allowed="GOOD..BAD: the run is made again identically with GOOD, and not with BAD",
            )

    def candidates_between(self, good: str, bad: str) -> tuple[str, ...]:
        """Commits that may be the first bad one, newest first."""
        commits = len(_git(self.root, "rev-list", f"{good}..{bad}").splitlines())
        _git(self.root, "bisect", "start", bad, good)
        if commits > 1:
            command = ["git", *GIT_OPTIONS, "bisect", "run", *self._step()]
            deadline_s = commits * (self.trial.deadline_s + SPARE_S)
            code, said = self._run(command, deadline_s=deadline_s)
            if code not in (0, ONLY_SKIPPED_LEFT):
                raise RunFailedError(
                    f"git bisect run failed, or was ended after {deadline_s:g} s",
                    got=f"exit code {code}",
                    detail="\n".join(said),
                )
        good_refs = _git(self.root, "for-each-ref", "--format=%(objectname)", "refs/bisect/good-*").splitlines()
        left = _git(self.root, "rev-list", "refs/bisect/bad", "--not", *good_refs).splitlines()
        return tuple(left)

    def _step(self) -> list[str]:
        script, deadline_s = str(Path(bisect_step.__file__).resolve()), f"{self.trial.deadline_s:g}"
        return [sys.executable, "-P", script, deadline_s, str(self.tree), str(int(self.own)), *self.trial.words()]

    def _run(self, command: Sequence[str], *, deadline_s: float) -> tuple[int, list[str]]:
        """Carry out a command in the worktree, telling its lines; the whole group of processes ends with it."""
        process = subprocess.Popen(
            command,
            cwd=self.root,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        timer = threading.Timer(deadline_s, _kill_group, [process])
        timer.start()
        said = []
        try:
            assert process.stdout is not None
            with process.stdout as lines:
                for line in lines:
                    said.append(line.rstrip())
                    self.tell(line.rstrip())
            return process.wait(), said
        finally:
            timer.cancel()
            _kill_group(process)
            process.wait()

    def _environment(self) -> dict[str, str]:
        """Imports come from the tree first. No bytecode is left there: it would outlive the checkout of its source."""
        path = [str(self.tree)] if self.own else [str(self.tree), str(HERE)]
        return git_environment() | {"PYTHONPATH": os.pathsep.join(path), "PYTHONDONTWRITEBYTECODE": "1"}


def _kill_group(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _repository(place: Path) -> tuple[Path, Path]:
    """Top of the work tree that holds `place`, and where `place` lies in it."""
    try:
        top = _git(place, "rev-parse", "--show-toplevel")
        prefix = _git(place, "rev-parse", "--show-prefix")
        tracked = _git(place, "ls-files", "--", ".")
    except (RunFailedError, OSError) as error:
        raise ConfigError("--bisect needs a git repository", got=error, fix="name it with --repo") from None
    if not tracked:
        raise ConfigError(
            "--bisect needs a repository that tracks the code",
            got=f"{place}, of which the repository {top} knows nothing",
            fix="name the repository with --repo",
        )
    return Path(top), Path(prefix)


def _ends(top: Path, commits: str) -> tuple[str, str]:
    good, dots, bad = commits.partition("..")
    if not dots or not good or not bad or bad.startswith("."):
        raise ConfigError("--bisect", got=commits or "nothing", allowed="GOOD..BAD, two commits")
    ends = []
    for name in (good, bad):
        try:
            ends.append(_git(top, "rev-parse", "--verify", "--end-of-options", f"{name}^{{commit}}"))
        except RunFailedError:
            raise ConfigError("--bisect", got=name, allowed=f"a commit of {top}") from None
    if ends[0] == ends[1] or not _is_ancestor(top, ends[0], ends[1]):
        raise ConfigError("--bisect", got=commits, allowed="GOOD..BAD, where GOOD is an ancestor of BAD")
    return ends[0], ends[1]


def _is_ancestor(top: Path, old: str, new: str) -> bool:
    return _git(top, "merge-base", old, new) == old


@contextmanager
def _worktree(top: Path, commit: str) -> Iterator[Path]:
    """A worktree of its own at `commit`, removed with the block."""
    with TemporaryDirectory(prefix="truestep-bisect-", ignore_cleanup_errors=True) as directory:
        root = Path(directory).resolve() / "tree"
        try:
            _git(top, "worktree", "add", "--quiet", "--detach", str(root), commit)
            yield root
        finally:
            _git(top, "worktree", "remove", "--force", "--force", str(root), failing_allowed=True)
            _git(top, "worktree", "prune", failing_allowed=True)


def _git(directory: Path, *arguments: str, failing_allowed: bool = False) -> str:
    """What a command of git says. Raises RunFailedError if it fails or takes longer than `GIT_S`."""
    command = ["git", "-C", str(directory), *GIT_OPTIONS, *arguments]
    words = f"git {' '.join(arguments)}"
    try:
        done = subprocess.run(
            command, env=git_environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=GIT_S
        )
    except subprocess.TimeoutExpired:
        raise RunFailedError(f"{words} took longer than {GIT_S:g} s") from None
    if done.returncode and not failing_allowed:
        raise RunFailedError(words, got=done.stderr.strip() or f"exit code {done.returncode}")
    return done.stdout.strip()
