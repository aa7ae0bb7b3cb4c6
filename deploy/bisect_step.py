"""One step of `truestep reproduce --bisect`, as `git bisect run` calls it: by path, in a process of its own.

    python -P bisect_step.py DEADLINE_S TREE OWN COMMAND ...

The command is carried out in TREE. Its answer, one JSON object on the last line of stdout, decides the exit code: 0
where the run was made again identically, 1 where something differed, 125 (this commit cannot be judged) for everything
else: it does not start, fails, is not done within DEADLINE_S seconds, or (OWN 1) is not the truestep of that tree.

Imports nothing of truestep: the commits that are tried bring their own.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

GOOD, BAD, SKIP = 0, 1, 125
WORDS = {GOOD: "good", BAD: "bad", SKIP: "skip"}
LEAVE_S = 20.0  # for a run that is told to end to end its processes


def step(command: list[str], *, tree: Path, own: bool, deadline_s: float) -> tuple[int, str]:
    """Carry out the command; returns the exit code and a sentence."""
    process = subprocess.Popen(
        command, cwd=tree, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        said, complaint = process.communicate(timeout=deadline_s)
    except subprocess.TimeoutExpired:
        _end(process)
        return SKIP, f"not done within {deadline_s:g} s"
    last = (complaint.strip().splitlines() or ["nothing was said"])[-1]
    answer = _answer(said)
    if answer is None:
        return SKIP, f"exit code {process.returncode}: {last}"
    place = Path(answer["here"]["sources"]["deploy"]["path"])
    if own and not place.is_relative_to(tree.resolve()):
        return SKIP, f"not the truestep of this commit ran, but that in {place}"
    return _judged(answer)


def _judged(answer: dict[str, Any]) -> tuple[int, str]:
    through = f"identical through update {answer['identical_through']}"
    match answer["verdict"]:
        case "identical":
            return GOOD, through
        case "different":
            return BAD, f"{through}, then another {answer['kind']}"
        case _:
            return SKIP, f"{through}, then {answer['why']}"


def _answer(said: str) -> dict[str, Any] | None:
    """The object on the last line, if it is the answer of `truestep reproduce --json`."""
    try:
        answer = json.loads((said.strip().splitlines() or [""])[-1])
        return answer if {"verdict", "identical_through", "kind", "why", "here"} <= answer.keys() else None
    except (ValueError, AttributeError):
        return None


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.communicate(timeout=LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()


def main(arguments: list[str]) -> int:
    """As above."""
    deadline_s, tree, own, *command = arguments
    code, why = step(command, tree=Path(tree), own=own == "1", deadline_s=float(deadline_s))
    commit = subprocess.run(["git", "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=False)
    print(f"{commit.stdout.strip()} {WORDS[code]}: {why}", flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
