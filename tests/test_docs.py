"""What the documents say is so: commands run, links lead somewhere, names name something, tables are today's."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from importlib import import_module
from pathlib import Path

import pytest

from common.clock import MonotonicClock, wait_until
from common.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_FINISHED, EXIT_RESUMABLE
from deploy import cli, config_reference
from deploy.config import RunConfig, merge, parse_config, setting
from tests.e2e.command import environment

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
PACKAGES = ("actors", "common", "deploy", "learner", "tests", "benchmarks", "docs")
LIMIT_S = 90.0
NOT_TRIED = ("top", "profile", "doctor", "export")  # they need a live run, or the package of an extra
COMMANDS = ("train", "resume", "evaluate", "runs", "show", "drill", "check", "reproduce", "compare", "replay", "report")

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
LINK = re.compile(r"\]\(([^)\s]+)\)")
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
FILE = re.compile(rf"(?:{'|'.join(PACKAGES)})/[\w./*-]*")
DOTTED = re.compile(rf"(?:{'|'.join(PACKAGES)})(?:\.\w+)+")
MACHINE = re.compile(r"(?<![\w.:/])/(?:work|tmp|home|root|usr|Users)\b|\.\./shared|--(?:extra-)?index-url")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block."""

    language: str
    text: str

    def commands(self) -> list[tuple[str, bool]]:
        """Lines after `$ `, and whether `^C` follows."""
        lines = self.text.splitlines()
        pairs = zip(lines, [*lines[1:], ""], strict=True)
        return [(line[2:], after == "^C") for line, after in pairs if line.startswith("$ ")]


def blocks(path: Path) -> list[Block]:
    return [Block(language=language, text=text) for language, text in BLOCK.findall(path.read_text())]


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return BLOCK.sub("", path.read_text())


def spans(path: Path) -> Iterator[str]:
    yield from SPAN.findall(prose(path))


def anchors(path: Path) -> set[str]:
    """Headings as GitHub makes anchors of them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# ── commands ─────────────────────────────────────────────────────────────────────────────────────────────────────


def run(words: list[str], directory: Path, *, interrupt: bool) -> tuple[int, str]:
    """Run a command in `directory`; with `interrupt`, press Ctrl-C once it has told of an evaluation."""
    said = directory / "said.txt"
    surroundings = environment() | {"PYTHONPATH": str(ROOT), "COLUMNS": "120"}
    with said.open("w") as file:
        process = subprocess.Popen(words, cwd=directory, stdout=file, stderr=subprocess.STDOUT, env=surroundings)
    try:
        if interrupt:
            ready = lambda: "evaluation after" in said.read_text() or process.poll() is not None
            assert wait_until(ready, clock=MonotonicClock(), seconds=LIMIT_S), said.read_text()
            process.send_signal(signal.SIGINT)
        return process.wait(LIMIT_S), said.read_text()
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def try_out(path: Path, directory: Path) -> set[tuple[str, int]]:
    """Every python block and every command of a document, in order; returns which commands ended with which codes."""
    done = set()
    for block in blocks(path):
        if block.language == "python":
            named = re.match(r"# (\w+\.py)\n", block.text)
            (directory / (named[1] if named else "snippet.py")).write_text(block.text)
            if named is None:
                code, said = run([sys.executable, "snippet.py"], directory, interrupt=False)
                assert code == EXIT_FINISHED, said
        for command, interrupted in block.commands() if block.language == "console" else []:
            words = shlex.split(command)
            if words[0] != "truestep":
                assert words[0] == "make", f"unknown command {command!r}"
                continue
            code, said = run([sys.executable, "-m", "deploy", *words[1:]], directory, interrupt=interrupted)
            assert code == (EXIT_RESUMABLE if interrupted else EXIT_FINISHED), f"{command}\n{said}"
            done.add((words[1], code))
    return done


@pytest.mark.timeout(300)
def test_the_commands_of_the_readme_work_in_order(tmp_path: Path) -> None:
    """Each exits with 0, the interrupted one with 75; the python blocks run or are the modules that commands name."""
    done = try_out(ROOT / "README.md", tmp_path)
    finished = {(name, EXIT_FINISHED) for name in COMMANDS}
    assert done == finished | {("train", EXIT_RESUMABLE)}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_check_of_determinism_gives_one_digest(tmp_path: Path) -> None:
    """The two commands that the document offers as a check: the same parameters inline and over Ray."""
    commands = [
        command
        for block in blocks(ROOT / "docs" / "determinism.md")
        if block.language == "console"
        for command, _ in block.commands()
    ]
    digests = []
    for command in commands:
        code, said = run([sys.executable, "-m", "deploy", *shlex.split(command)[1:]], tmp_path, interrupt=False)
        assert code == EXIT_FINISHED, said
        digests += re.findall(r"parameters +sha256 ([0-9a-f]{64})", said)
    assert len(commands) == len(digests) == 2
    assert digests[0] == digests[1]


def test_make_targets_of_the_documents_exist() -> None:
    """Every `make x`, in blocks and prose; and `make run` is what the README says it is."""
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    named = {name for path in DOCUMENTS for name in re.findall(r"(?:`|\$ )make ([a-z-]+)", path.read_text())}
    assert {"install", "run", "test"} <= named <= targets
    assert re.search(r"^run:.*\n\t.*/truestep train CartPole-v1 --actors 2 --out", makefile, re.MULTILINE)


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def flags() -> dict[str, set[str]]:
    """The flags of each command, from its help."""
    known = {}
    for name in (*COMMANDS, *NOT_TRIED):
        words = [sys.executable, "-m", "deploy", name, "--help"]
        told = subprocess.run(words, capture_output=True, text=True, cwd=ROOT, env=dict(os.environ), check=True).stdout
        known[name] = set(FLAG.findall(told))
    return known


@pytest.mark.parametrize("name", NAMES)
def test_flags_exist(name: str, flags: dict[str, set[str]]) -> None:
    """Those behind `truestep train ...` in its help; those that stand alone in some command's, or in a benchmark."""
    text = (ROOT / name).read_text()
    for command, rest in re.findall(rf"truestep ({'|'.join((*COMMANDS, *NOT_TRIED))})\b([^`\n]*)", text):
        assert set(FLAG.findall(rest)) <= flags[command], f"truestep {command}{rest}"
    benchmarks = "".join(path.read_text() for path in (ROOT / "benchmarks").rglob("*.py"))
    known = {flag for each in flags.values() for flag in each} | set(FLAG.findall(benchmarks))
    alone = {span.split()[0] for span in spans(ROOT / name) if span.startswith("--")}
    assert alone <= known


@pytest.mark.parametrize("name", NAMES)
def test_paths_and_modules_exist(name: str) -> None:
    """`common/wire.py`, `deploy/ray_*.py`, `common.errors.UserError`, `python -m benchmarks.codec`."""
    for span in spans(ROOT / name):
        for path in FILE.findall(span) if "<" not in span else []:
            assert list(ROOT.glob(path.rstrip("/."))), path
    text = (ROOT / name).read_text()
    named = {span for span in spans(ROOT / name) if DOTTED.fullmatch(span)}
    named |= set(re.findall(r"-m ([a-z]+\.[\w.]+)", text))
    keys = {key.path for key in config_reference.keys_of(RunConfig)}
    assert [dotted for dotted in named - keys if not importable(dotted)] == []


def importable(dotted: str) -> bool:
    """Whether `a.b.c` is a module, or an attribute of one."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        if (ROOT.joinpath(*parts[:length])).is_dir() or ROOT.joinpath(*parts[:length]).with_suffix(".py").is_file():
            found: object = import_module(".".join(parts[:length]))
            return all((found := getattr(found, part, None)) is not None for part in parts[length:])
    return False


@pytest.mark.parametrize("name", NAMES)
def test_configuration_keys_exist(name: str) -> None:
    """`ppo.clip` where a document names it, what `--set` sets, and every TOML block."""
    keys = {key.path for key in config_reference.keys_of(RunConfig)}
    sections = {key.partition(".")[0] for key in keys if "." in key}
    text = (ROOT / name).read_text()
    shown = [span for span in spans(ROOT / name) if re.fullmatch(r"[a-z]+(\.[a-z_0-9]+)+", span)]
    named = {span for span in shown if span.split(".")[0] in sections and not importable(span)}
    named |= {key for key in re.findall(r"--set ([a-z][\w.]*)=", text) if not key.startswith("env.kwargs.")}
    assert named <= keys
    for block in blocks(ROOT / name):
        if block.language == "toml":
            parse_config(merge(setting('env.id="X-v0"'), tomllib.loads(block.text)))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name: str) -> None:
    """Relative ones to a file of the repository, and to a heading of it."""
    here = ROOT / name
    for target in LINK.findall(prose(here)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        file = (here.parent / path).resolve() if path else here
        assert file.is_relative_to(ROOT) and file.exists(), target
        assert not anchor or anchor in anchors(file), target


@pytest.mark.parametrize("name", NAMES)
def test_no_machine_is_named(name: str) -> None:
    """No path of one machine and no host of a package registry."""
    assert MACHINE.findall((ROOT / name).read_text()) == []


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_keys_are_those_of_the_records() -> None:
    """docs/configuration.md holds what `python -m deploy.config_reference` prints today."""
    document = (ROOT / "docs" / "configuration.md").read_text()
    assert config_reference.renewed(document) == document


def test_a_key_without_a_meaning_is_an_error() -> None:
    """So that none can be added undocumented."""
    bare = make_dataclass("Bare", [("key", int, 0)])
    with pytest.raises(KeyError, match="key"):
        list(config_reference.keys_of(bare))


def test_a_meaning_may_span_lines_and_serve_two_keys() -> None:
    """`a, b: ...` goes to both, and a continued line belongs to the entry above it, colon or not."""

    class Record:
        """Something.

        Attributes:
            a, b: first: and
                second: line.
            c: other.
        """

    first = "first: and second: line."
    assert config_reference.attributes(Record) == {"a": first, "b": first, "c": "other."}


def test_a_document_without_markers_is_refused() -> None:
    """Rather than left as it was."""
    with pytest.raises(ValueError, match="no place for the tables"):
        config_reference.renewed("# Configuration\n")


def test_the_exit_codes_are_those_of_the_command() -> None:
    """The table of the README, and the command's own help."""
    codes = [int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.MULTILINE)]
    assert codes == [EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_INPUT, EXIT_RESUMABLE]
    assert [int(code) for code in re.findall(r"\b\d+\b", cli.__doc__ or "")] == codes


def test_every_decision_has_its_three_parts_and_is_listed() -> None:
    """Context, choice, consequences; the number in the name is that in the title."""
    listed = (ROOT / "docs" / "architecture.md").read_text()
    for path in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        text = path.read_text()
        assert text.startswith(f"# {path.name[:4]}: ")
        assert all(part in text for part in ("**Context.**", "**Choice", "onsequences")), path.name
        assert f"decisions/{path.name}" in listed


# ── the checks checked ───────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_there_is_not_importable() -> None:
    """Neither a module nor an attribute; what is there, is."""
    assert importable("common.errors") and importable("common.errors.UserError") and importable("deploy.conductor")
    assert not importable("common.nowhere") and not importable("common.errors.NoSuchError")


def test_a_machine_path_is_seen() -> None:
    """And a path within a sentence or an address is not."""
    assert MACHINE.search("see /tmp/x") and MACHINE.search("`/home/ada`") and MACHINE.search("/root/x")
    assert not MACHINE.search("serves /metrics, http://127.0.0.1:9100/targets; actors/worker.py")
