"""py-spy: what it says is read, and every way in which it cannot do it has its words. A script stands in for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from deploy.profiling import pyspy
from deploy.profiling.pyspy import PySpyUnable, dump, find_py_spy, record

ROOT = Path(__file__).parents[3]
Planted = Callable[[str], None]


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """Puts a shell script in py-spy's place."""

    def plant(script: str) -> None:
        program = tmp_path / "py-spy"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setattr(pyspy, "find_py_spy", lambda: str(program))

    return plant


def test_samples_are_read_and_files_called_as_everywhere(planted: Planted) -> None:
    """Threads that only wait are left out, unless they are asked for."""
    step, wait = f"step ({ROOT}/actors/worker.py)", "Condition.wait (/x/threading.py)"
    raw = f"t (1);{step};spin ({ROOT}/tests/envs/spinning.py) 7\\nt (2);{wait} 9\\n"
    planted(f'for last; do :; done; printf "{raw}" > "$last"')
    spin = ("t (1)", "step (actors/worker.py)", "spin (tests/envs/spinning.py)")
    assert record(1, seconds=1, rate=100, idle=False).counts == {spin: 7}
    assert record(1, seconds=1, rate=100, idle=True).counts == {spin: 7, ("t (2)", "Condition.wait (threading.py)"): 9}


def test_stacks_are_read_outermost_first(planted: Planted) -> None:
    """With the thread's name or number, and whether it works."""
    frames = '[{"name": "spin", "filename": "/x/env.py", "line": 3}, {"name": "run", "filename": "/x/t.py", "line": 1}]'
    thread = f'{{"thread_name": "actor 0", "active": true, "owns_gil": true, "os_thread_id": 7, "frames": {frames}}}'
    idle = '{"thread_name": null, "active": true, "owns_gil": false, "os_thread_id": 8, "frames": []}'
    planted(f"cat <<'E'\n[{thread}, {idle}]\nE")
    working, waiting = dump(1)
    assert working.thread == "actor 0 (holds the interpreter lock)"
    assert working.frames == ("run (t.py:1)", "spin (env.py:3)")
    assert waiting.thread == "thread 8 (waits)"


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo 'Permission Denied: Try sudo' >&2; exit 1", "ptrace is not permitted"),
        ("printf 'noise\\nError: Failed to find python version\\n' >&2; exit 1", "Failed to find python version"),
        ("exit 3", "it said nothing"),
        ("exit 0", "wrote nothing to be read"),
        ("exec sleep 60", "did not end within"),
    ],
)
def test_every_way_in_which_it_cannot_do_it_has_its_words(
    script: str, words: str, planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All are one kind of exception, after which the process may be asked itself."""
    monkeypatch.setattr(pyspy, "GRACE_S", 0.2 if "sleep" in script else 30.0)
    planted(script)
    with pytest.raises(PySpyUnable, match=words):
        record(1, seconds=0.1, rate=100, idle=False)


def test_an_answer_of_another_form_is_no_crash(planted: Planted) -> None:
    """A later py-spy may say things otherwise."""
    planted("echo '[{}]'")
    with pytest.raises(PySpyUnable, match="another form"):
        dump(1)


def test_where_it_is_not_installed_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither beside this Python nor on the path."""
    monkeypatch.setattr(pyspy.shutil, "which", lambda *_, **__: None)
    with pytest.raises(PySpyUnable, match=r"pip install 'truestep\[profile\]'"):
        find_py_spy()


SPINNING = """
def planted_spin():
    while True:
        pass
print("spinning", flush=True)
planted_spin()
"""


def test_the_real_one_names_the_function_that_another_process_is_in() -> None:
    """Where it is installed and may look; else its own words say why not."""
    with subprocess.Popen([sys.executable, "-c", SPINNING], stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        try:
            assert process.stdout is not None and process.stdout.readline() == b"spinning\n"
            try:
                folded = record(process.pid, seconds=1, rate=100, idle=False)
                stacks = dump(process.pid)
            except PySpyUnable as error:
                pytest.skip(str(error))
            assert any("planted_spin" in frame for stack in folded.counts for frame in stack)
            assert "planted_spin" in str(stacks)
            assert wait_until(lambda: process.poll() is None, clock=MonotonicClock(), seconds=1)
        finally:
            process.kill()
