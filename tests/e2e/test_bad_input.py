"""Bad input of every kind ends with one clear message, exit code 2, no traceback and nothing half made."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.runs import RunRecord, RunRegistry
from tests.e2e.command import QUIET, SMALL, Started, alive, digests, processes_of, truestep, updates_made
from tests.e2e.in_process import Said, embedded_ray, say

pytest.importorskip("ray")
INLINE = ["--engine", "inline", "--steps", "600", *SMALL, *QUIET]
CARTPOLE = ["train", "CartPole-v1", *INLINE]
LIAR = "tests.envs:truestep-tests/WrongDtype-v0"
NAN = "tests.envs:truestep-tests/NaNReward-v0"


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    yield from embedded_ray(4)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output directory with one finished run, `done`."""
    out = tmp_path_factory.mktemp("finished")
    completed = truestep(*CARTPOLE, "--out", str(out), "--run", "done")
    assert completed.returncode == 0, completed.stderr
    return out


def assert_refused(said: Said, *words: str) -> None:
    """Exit code 2, and one message with these words: neither a traceback nor a second error."""
    assert said.code == 2, said
    assert "Traceback" not in said.err + said.out
    assert said.err.count("truestep: ") == 1, said.err
    for word in words:
        assert word in said.err, said.err


def runs(out: Path) -> list[RunRecord]:
    """Everything in the registry; nothing where there is none."""
    if not (out / "runs.sqlite").exists():
        return []
    with RunRegistry.open(out / "runs.sqlite", read_only=True) as registry:
        return registry.runs(limit=100)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "NoSuchEnv-v0", *INLINE], ["NoSuchEnv-v0", "registered"]),
        (["train", "CartPole-v9", *INLINE], ["CartPole-v9"]),
        (["train", "no_such_module:Thing-v0", *INLINE], ["no_such_module"]),
        (["train", *INLINE], ["no environment"]),
        ([*CARTPOLE, "--set", "ppo.clap=0.1"], ["ppo.clap", "did you mean 'clip'?"]),
        ([*CARTPOLE, "--set", "pqo.clip=0.1"], ["'pqo'", "did you mean 'ppo'?"]),
        ([*CARTPOLE, "--set", 'actors.num="two"'], ["actors.num", "'two'", "integer"]),
        ([*CARTPOLE, "--set", "ppo.clip"], ["--set", "key.path=value"]),
        ([*CARTPOLE, "--lanes", "0"], ["actors.lanes", "got 0", "1 to"]),
        ([*CARTPOLE, "--steps", "0"], ["steps", "got 0"]),
        ([*CARTPOLE, "--actors", "4096", "--rows", "1048576", "--lanes", "16"], ["memory", "GiB", "actors.rows"]),
        ([*CARTPOLE, "--rows", "1048576", "--lanes", "65536"], ["fragments cannot be made"]),
        ([*CARTPOLE, "--set", "ppo.minibatch=4096"], ["ppo.minibatch", "at most", "128"]),
        ([*CARTPOLE, "--set", "metrics.port='http'"], ["ports for metrics", "http"]),
        ([*CARTPOLE, "--stop-at-return", "100"], ["stop_at_return", "evaluation.every"]),
        ([*CARTPOLE, "--resume", "auto"], ["--resume auto", "--run NAME"]),
        ([*CARTPOLE, "--config", "/no/such/file.toml"], ["does not exist", "/no/such/file.toml"]),
        ([*CARTPOLE, "--init-from", "nobody"], ["nobody"]),
        ([*CARTPOLE, "--run", "../else"], ["../else"]),
        (["train", "tests.envs:truestep-tests/NotInstalled-v0", *INLINE], ["No module named 'simulator'"]),
        (["train", "tests.envs:truestep-tests/Needs-v0", *INLINE], ["licence"]),
        (["train", "tests.envs:truestep-tests/NoEnv-v0", *INLINE], ["NoEnv"]),
        (["resume", "nobody"], ["no runs there"]),
        (["show", "nobody"], ["no runs there"]),
        (["runs"], ["no runs there"]),
        (["evaluate", "nobody"], ["no runs there"]),
        (["evaluate", "nobody", "--episodes", "0"], ["--episodes", "got 0"]),
    ],
)
def test_what_is_bad_before_the_start_is_refused_and_leaves_nothing(
    arguments: list[str], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message that names the fault; no run in the registry, no directory of a run."""
    out = tmp_path / "out"
    assert_refused(say(capsys, *arguments, "--out", str(out)), *words)
    assert runs(out) == []
    assert not out.exists() or [path for path in out.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("text", ["a = [", "[ppo\nclip = 0.1", "checkpoint = 3", "[ppo]\nclip = 2020-01-01", "\x00"])
def test_a_broken_configuration_file_is_named(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not TOML, or TOML of the wrong shape: the file or the key is in the message."""
    file = tmp_path / "run.toml"
    file.write_text(text)
    said = say(capsys, *CARTPOLE, "--config", str(file), "--out", str(tmp_path / "out"))
    assert_refused(said)
    assert any(word in said.err for word in ("run.toml", "'checkpoint'", "'ppo.clip'")), said.err


def test_arguments_that_are_no_words_of_the_command_exit_with_2(capsys: pytest.CaptureFixture[str]) -> None:
    """A flag that does not exist, a wrong type, an unknown command: the parser's message, and the same exit code."""
    for arguments, word in ((["train", "X", "--lans", "4"], "--lans"), (["train", "X", "--actors", "two"], "--actors")):
        said = say(capsys, *arguments)
        assert said.code == 2 and word in said.err
        assert "Traceback" not in said.err + said.out
    assert say(capsys, "frobnicate").code == 2


@pytest.mark.parametrize(
    ("out", "words"),
    [
        ("file", "output directory cannot be written"),
        ("/proc/nowhere", "preflight found 1 shortfall"),
        ("/dev/null/x", "output directory cannot be written"),
    ],
)
def test_a_directory_that_cannot_be_written_is_named(
    out: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file where the directory should be, and places where nobody can make one."""
    (tmp_path / "file").write_text("")
    place = str(tmp_path / out)
    assert_refused(say(capsys, *CARTPOLE, "--out", place), words, "output directory", place, "--out")


def test_a_port_in_use_is_named_with_its_holder(tmp_path: Path) -> None:
    """Once; the run is watched at another one, which discovery and the record know: nobody need end a run for that."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        said = truestep(*CARTPOLE, "--set", f"metrics.port={port}", "--out", str(tmp_path), "--run", "r")
    assert said.returncode == 0, said.stderr
    told = [line for line in said.stderr.splitlines() if "held by process" in line]
    assert len(told) == 1 and str(port) in told[0], said.stderr
    with RunRegistry.open(tmp_path / "runs.sqlite", read_only=True) as registry:
        served = [event.data["address"] for event in registry.events("r") if event.kind == "SERVING"]
    assert len(served) == 1 and served[0] in told[0].replace("port ", "127.0.0.1:")
    assert not served[0].endswith(f":{port}")


@pytest.mark.parametrize("command", ["resume", "show", "evaluate"])
def test_a_run_that_does_not_exist_is_named_with_those_alike(
    command: str, finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the pen in a name is answered with the name that was meant."""
    assert_refused(say(capsys, command, "dnoe", "--out", str(finished)), "'dnoe'", "done")


def test_a_name_in_use_is_not_used_again(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`train --run` of a run that exists is refused and changes nothing."""
    before = digests(finished, "done")
    said = say(capsys, *CARTPOLE, "--out", str(finished), "--run", "done")
    assert_refused(said, "done")
    assert digests(finished, "done") == before and len(runs(finished)) == 1


def test_init_from_and_checkpoints_that_do_not_exist(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The source of weights, and a checkpoint to evaluate, are looked for before anything starts."""
    said = say(capsys, *CARTPOLE, "--out", str(finished), "--init-from", "dnoe")
    assert_refused(said, "'dnoe'", "done")
    said = say(capsys, "evaluate", "done", "--checkpoint", "update-7", "--out", str(finished))
    assert_refused(said, "update-7", "newest")
    assert len(runs(finished)) == 1


def test_weights_of_another_network_are_refused(finished: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--init-from a run with other layers: said before a run is made, not broadcast or cut."""
    arguments = [*CARTPOLE, "--out", str(finished), "--init-from", "done", "--run", "wider", "--set", "net.hidden=[32]"]
    said = say(capsys, *arguments)
    assert said.code == 2 and "Traceback" not in said.err
    assert "trained another network" in said.err, said.err
    assert not (finished / "wider").exists()


LIES = {
    "partial reset": (LIAR, ["mode='partial_reset'"], ["reset", "a tuple (observation, info)"]),
    "float64": (LIAR, ["mode='float64_obs'", "at=20"], ["tick 20", "dtype float64", "float32"]),
    "nan": (NAN, [], ["reward", "nan", "tick 3", "env.on_nonfinite"]),
    "shape": (LIAR, ["mode='shape_obs'", "at=1"], ["tick 1", "(3, 1)"]),
    "none": (LIAR, ["mode='none'", "at=3"], ["tick 3", "NoneType"]),
    "text": (LIAR, ["mode='text_reward'"], ["reward", "tick 2"]),
}
LIES_OVER = [("inline", lie) for lie in LIES] + [("ray", lie) for lie in ("partial reset", "float64", "nan")]


@pytest.mark.parametrize(("engine", "lie"), LIES_OVER)
def test_an_environment_that_lies_ends_the_run_with_the_name_of_its_fault(
    engine: str, lie: str, cluster: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Environment, actor, tick, what was got and allowed; the run is recorded as failed with that verdict."""
    env, kwargs, words = LIES[lie]
    settings = [word for pair in kwargs for word in ("--set", f"env.kwargs.{pair}")]
    arguments = ["train", env, *INLINE, "--engine", engine, *settings, "--out", str(tmp_path), "--run", "liar"]
    assert_refused(say(capsys, *arguments), env, "actor", *words)
    (record,) = runs(tmp_path)
    assert record.status == "failed"
    assert all(word in record.verdict for word in words)


def test_a_run_that_is_driven_is_not_driven_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """While its driver lives, resume and --resume auto are refused, naming that process; the run goes on untouched."""
    words = ["--out", str(tmp_path), "--run", "r"]
    with Started(["train", "CartPole-v1", *INLINE, "--steps", "10000000", *words]) as driver:
        driver.wait_for(lambda: updates_made(tmp_path, "r") > 0, "an update")
        for arguments in (["resume", "r", "--out", str(tmp_path)], [*CARTPOLE, *words, "--resume", "auto"]):
            assert_refused(say(capsys, *arguments), "'r'", str(driver.process.pid))
        made = updates_made(tmp_path, "r")
        driver.wait_for(lambda: updates_made(tmp_path, "r") > made, "further updates")


@pytest.mark.parametrize("damage", ["text", "header", "pages", "other program"])
@pytest.mark.parametrize("command", ["runs", "show", "resume", "train"])
def test_a_damaged_registry_is_said_and_left_as_it_is(
    command: str, damage: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One message naming the file, exit code 1; nothing is made anew over what may still be saved."""
    file = tmp_path / "runs.sqlite"
    contents = bytearray((finished / "runs.sqlite").read_bytes())
    match damage:
        case "text":
            contents = bytearray(b"these are not the runs you are looking for\n" * 100)
        case "header":
            contents[:100] = bytes(100)
        case "pages":
            contents[4096:] = b"\xa5" * (len(contents) - 4096)
        case "other program":
            contents[68:72] = b"GPKG"  # the application id of a geography file
    file.write_bytes(contents)
    arguments = CARTPOLE if command == "train" else [command] if command == "runs" else [command, "done"]
    said = say(capsys, *arguments, "--out", str(tmp_path))
    assert said.code == 1, said
    assert said.err.count("truestep: ") == 1 and str(file) in said.err and "Traceback" not in said.err, said.err
    assert file.read_bytes() == contents


def test_the_real_command_over_ray_says_it_once_and_leaves_no_process(tmp_path: Path) -> None:
    """A liar in a process of its own: exit code 2, one message on stderr, no descendant left."""
    seen: list[int] = []
    arguments = ["train", LIAR, *INLINE, "--engine", "ray", "--set", "env.kwargs.mode=none", "--set", "env.kwargs.at=9"]
    with Started([*arguments, "--out", str(tmp_path), "--json"]) as started:
        while started.process.poll() is None and not seen:
            seen = processes_of(started.process.pid)
        completed = started.finish()
    assert completed.returncode == 2
    assert completed.stderr.count("truestep: ") == 1 and "tick 9" in completed.stderr
    assert "Traceback" not in completed.stderr + completed.stdout
    assert not [pid for pid in seen if alive(pid)]
