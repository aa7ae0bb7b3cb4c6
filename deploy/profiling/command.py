"""The command `truestep profile`: finds the process, has it profiled, writes the result and says what is in it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from secrets import token_hex

from common.errors import EXIT_FINISHED, OutputError
from deploy.cli import Profile as Command
from deploy.profiling.profiling import Kind, Profile, ProfileRequest, make_profile, named
from deploy.watched import LiveProcess, address_of_run, processes, token_of_run

SUFFIXES: dict[Kind, str] = {"flame": ".svg", "stacks": ".txt", "torch": ".json", "memory": ".txt"}


def profile(command: Command) -> int:
    """Profile a process; returns the exit code. Raises UserError and UnreachableError."""
    request = ProfileRequest(
        process=command.process,
        kind=command.kind,
        seconds=command.seconds,
        rate=command.rate,
        idle=command.idle,
        sampler=command.sampler,
    )
    token = token_of_run(command.run, command.out, command.token_file)
    process = named(request.process, processes(address_of_run(command.run, command.out, command.address), token=token))
    file = _output_file(request, process, command)
    if request.kind != "stacks":
        print(f"profiling    {process.name} for {request.seconds:g} s; the run goes on", file=sys.stderr, flush=True)
    made = make_profile(request, process, run=command.run)
    _tell(made, file)
    return EXIT_FINISHED


def _tell(made: Profile, file: Path | None) -> None:
    for note in made.notes:
        print(note, file=sys.stderr)
    if file is None:
        print(made.data.decode(), end="", flush=True)
        return
    write_whole(file, made.data)
    print(f"written      {file} ({len(made.data):,} bytes)", flush=True)


def _output_file(request: ProfileRequest, process: LiveProcess, command: Command) -> Path | None:
    """Where the profile goes; None is the terminal, for what is text. Told before anything is profiled."""
    text = SUFFIXES[request.kind] == ".txt"
    if command.output is None and text:
        return None
    file = command.output or _unused(Path(f"{command.run}-{process.name}-{request.kind}{SUFFIXES[request.kind]}"))
    if file.is_dir() or not os.access(file.parent, os.W_OK):
        why = "a directory" if file.is_dir() else f"{file.parent} is no directory that can be written to"
        raise OutputError("--output cannot be written", got=f"{file}: {why}", allowed="a file in a directory of yours")
    return file


def _unused(file: Path) -> Path:
    number, found = 2, file
    while found.exists():
        found = file.with_stem(f"{file.stem}-{number}")
        number += 1
    return found


def write_whole(file: Path, data: bytes) -> None:
    """The whole file or none of it, over an earlier one. Raises OutputError."""
    beside = file.with_name(f".{file.name}-{token_hex(4)}")
    try:
        beside.write_bytes(data)
        beside.replace(file)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OutputError(
            "the output cannot be written", got=f"{file} ({error.strerror})", fix="choose another with --output"
        ) from None
