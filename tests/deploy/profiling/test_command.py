"""The command from end to end, against servers of this process: what is written, and what is said when it is not."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from common.errors import OutputError, UnreachableError
from deploy.cli import main
from deploy.profiling import command, profiling, pyspy
from deploy.profiling.pyspy import PySpyUnable
from tests.common.test_profiling import planted_spin, thread_of
from tests.deploy.live import LiveRun, live_run, target_of
from tests.deploy.test_watched import closed_port, silent_server


class Traced:
    def trace(self, seconds: float, *, stop: threading.Event) -> bytes:
        return b'{"traceEvents": [{"name": "aten::mm"}]}'


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveRun]:
    """A live run, and a working directory of the test's own."""
    monkeypatch.chdir(tmp_path)
    with live_run(Traced()) as live:
        yield live


def no_py_spy(*_: object, **__: object) -> str:
    raise PySpyUnable("ptrace is not permitted")


def profile(run: LiveRun, capsys: pytest.CaptureFixture[str], words: str) -> Said:
    with pytest.raises(SystemExit) as ended:
        main(["profile", "r", "--address", run.address, *words.split()])
    told = capsys.readouterr()
    return Said(int(ended.value.code or 0), told.out, told.err)


def test_a_flame_graph_names_the_planted_function(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Sampled from inside; written where it was asked for, and told on the terminal."""
    with thread_of(planted_spin, "actor 0"):
        said = profile(run, capsys, "--process actor-0 --seconds 0.3 --sampler inside --output f.svg")
    assert said.code == 0
    svg = Path("f.svg").read_text()
    assert "planted_spin (tests/common/test_profiling.py)" in svg and "actor-0 of r" in svg
    assert said.out.startswith("written      f.svg (")
    assert "the run goes on" in said.err and "sampled from inside" in said.err and "planted_spin" in said.err


def test_where_py_spy_may_not_look_the_process_samples_itself(
    run: LiveRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And says why; asked for by name, that is an error."""
    monkeypatch.setattr(pyspy, "find_py_spy", no_py_spy)
    words = "--process actor-0 --seconds 0.1 --output f.svg"
    said = profile(run, capsys, words)
    assert said.code == 0 and "sampled from inside: ptrace is not permitted" in said.err
    said = profile(run, capsys, f"{words} --sampler py-spy")
    assert said.code == 2
    assert "--sampler py-spy cannot be had; got ptrace is not permitted; allowed: auto, inside" in said.err


def test_py_spy_is_given_the_process_id_of_a_process_on_this_machine(
    run: LiveRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one on another machine nothing is asked of it."""
    asked: list[int] = []

    def record(pid: int, **_: object) -> profiling.Folded:
        asked.append(pid)
        return profiling.Folded(counts={("t", "f (x.py)"): 3}, remarks=("sampled by py-spy",))

    monkeypatch.setattr(profiling.pyspy, "record", record)
    words = "--process actor-0 --seconds 0.1 --output f.svg"
    assert profile(run, capsys, words).code == 0 and asked == [os.getpid()]
    process = profiling.named("actor-0", command.processes(run.address))
    answering = profiling.ask(process)
    monkeypatch.setattr(profiling, "ask", lambda _: replace(answering, here=False))
    said = profile(run, capsys, words)
    assert said.code == 0 and asked == [os.getpid()] and "not here" in said.err


def test_stacks_are_printed(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """Innermost first, on stdout; into a file if one is named."""
    said = profile(run, capsys, "--process learner-0 --kind stacks --sampler inside")
    assert said.code == 0 and "metrics of learner 0\n    " in said.out
    said = profile(run, capsys, "--process learner-0 --kind stacks --sampler inside --output s.txt")
    assert "metrics of learner 0" in Path("s.txt").read_text()


def test_a_trace_is_written_for_ranks_only(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """rank-0 is learner-0; an actor says what it can show instead."""
    said = profile(run, capsys, "--process rank-0 --kind torch --seconds 1")
    assert said.code == 0
    assert json.loads(Path("r-learner-0-torch.json").read_text())["traceEvents"][0]["name"] == "aten::mm"
    said = profile(run, capsys, "--process actor-0 --kind torch")
    assert said.code == 2 and "allowed: stacks, flame, memory" in said.err


def test_memory_is_told_in_words(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """On the terminal, with what is not in it."""
    said = profile(run, capsys, "--process driver --kind memory --seconds 0.05")
    assert said.code == 0 and "driver: allocated by Python within 0.05 s and still held" in said.out


def test_a_file_that_was_not_named_takes_nobodys_place(run: LiveRun, capsys: pytest.CaptureFixture[str]) -> None:
    """A second one is called so; a named one is replaced as a whole."""
    words = "--process actor-0 --seconds 0.05 --sampler inside"
    for name in ("r-actor-0-flame.svg", "r-actor-0-flame-2.svg"):
        assert profile(run, capsys, words).out.startswith(f"written      {name}")
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["r-actor-0-flame-2.svg", "r-actor-0-flame.svg"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--process actor-7", "no such process in the run; got 'actor-7'; allowed: actor-0, driver, learner-0"),
        ("--process actor-0 --seconds 0", "--seconds; got 0.0; allowed: above 0, up to 300"),
        ("--process actor-0 --seconds 301", "allowed: above 0, up to 300"),
        ("--process actor-0 --rate 2000", "--rate; got 2000.0; allowed: above 0, up to 1000"),
        ("--process actor-0 --output nowhere/f.svg", "--output cannot be written; got nowhere/f.svg"),
        ("--process actor-0 --output .", "--output cannot be written; got .: a directory"),
    ],
)
def test_what_the_caller_can_mend_is_told_before_anything_is_profiled(
    words: str, said: str, run: LiveRun, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 2, one line."""
    told = profile(run, capsys, words)
    assert told.code == 2 and said in told.err and "profiling " not in told.err


def test_a_process_that_is_gone_is_said_to_be(
    run: LiveRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its driver still lists it; nobody answers, and py-spy does not find it: exit code 1, no fault of the caller."""
    monkeypatch.setattr(pyspy, "find_py_spy", no_py_spy)
    run.targets[1] = target_of("actor", 0, closed_port())
    said = profile(run, capsys, "--process actor-0 --seconds 0.1")
    assert said.code == 1
    assert "actor-0 at" in said.err and "refused" in said.err and "from outside: ptrace is not permitted" in said.err


def test_a_process_that_hangs_is_looked_at_from_outside(
    run: LiveRun, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes connections and answers none, as one does whose interpreter lock is held: py-spy needs no answer."""
    monkeypatch.setattr("deploy.profiling.asking.ANSWER_S", 0.05)
    monkeypatch.setattr(profiling.pyspy, "dump", lambda pid: [profiling_stack(pid)])
    with silent_server() as address:
        run.targets[1] = target_of("actor", 0, address)
        said = profile(run, capsys, "--process actor-0 --kind stacks")
    assert said.code == 0 and f"thread of {os.getpid()}\n    hang (env.py:3)" in said.out


def profiling_stack(pid: int) -> profiling.pyspy.ThreadStack:
    return profiling.pyspy.ThreadStack(thread=f"thread of {pid}", frames=("hang (env.py:3)",))


def test_an_output_that_fails_at_the_end_leaves_the_earlier_file(tmp_path: Path) -> None:
    """Written beside it first, so a full disk costs nothing that was there."""
    file = tmp_path / "f.svg"
    file.write_text("before")
    with pytest.raises(OutputError, match="the output cannot be written"):
        command.write_whole(tmp_path / "no" / "f.svg", b"after")
    assert file.read_text() == "before"
    command.write_whole(file, b"after")
    assert [path.name for path in tmp_path.iterdir()] == ["f.svg"] and file.read_text() == "after"


def test_a_driver_that_is_gone_is_an_error_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Not bad input: exit code 1."""
    with pytest.raises(SystemExit) as ended:
        main(["profile", "r", "--address", closed_port(), "--process", "actor-0"])
    assert ended.value.code == UnreachableError.exit_code == 1
    assert "the driver at" in capsys.readouterr().err
