"""The command `truestep`. Exit codes: 0 finished, 1 failed, 2 bad input, 75 checkpointed and resumable."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro
from tyro.conf import Positional, UseAppendAction, arg

from common.errors import EXIT_BAD_INPUT, EXIT_FAILED, TruestepError

Out = Annotated[Path, arg(help="Output directory: the run registry, and one directory per run.")]
Json = Annotated[bool, arg(name="json", help="Print one JSON object on stdout, and nothing else there.")]
EnvId = Positional[Annotated[str, arg(metavar="ENV", help="Gymnasium id, or module:Id for a package of your own.")]]
RunName = Positional[Annotated[str, arg(metavar="RUN", help="Name of a run; see `truestep runs`.")]]


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a policy."""

    env: Positional[
        Annotated[str, arg(metavar="ENV", help="Gymnasium id, or module:Id for a package of your own.")]
    ] = ""
    algo: Literal["ppo", "impala", "appo"] | None = None
    """Algorithm; its defaults come from the recipe of the environment."""
    actors: int | None = None
    """Actor processes."""
    lanes: int | None = None
    """Environments of each actor."""
    learners: int | None = None
    """Learner ranks: processes that make each update together, every gradient step verified."""
    rows: int | None = None
    """Ticks of a fragment; an update takes actors x lanes x rows."""
    steps: int | None = None
    """Environment steps to train for."""
    seed: int | None = None
    """Root of every random stream."""
    config: Path | None = None
    """TOML file with any part of the configuration."""
    set_: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")] = ()
    """Any single value, as in --set ppo.clip=0.1; may be repeated."""
    engine: Literal["ray", "inline"] | None = None
    """ray: processes. inline: everything in this process."""
    policy_lag: Literal[0, 1] | None = None
    """With ppo: 1 collects for the next update while one is made."""
    out: Out = Path("runs")
    run: str = ""
    """Name of the run; made from environment, algorithm and seed if not given."""
    resume: Literal["auto", "never"] = "never"
    """auto: go on with --run if it exists."""
    init_from: str = ""
    """Begin from the newest weights of this run in the same output directory."""
    stop_at_return: float | None = None
    """End early once an evaluation's mean return reaches this."""
    preflight: bool = False
    """Check all that the run needs, here and on every node of the cluster, say it as a table, and start nothing."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Resume:
    """Go on with a run from its newest good checkpoint."""

    run: RunName
    out: Out = Path("runs")
    take_over: bool = False
    """Take the run from a driver on another host that is known to be gone."""
    learners: int | None = None
    """Learner ranks this time; parameters then differ in rounding from those of the unbroken run."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Play greedy episodes with a trained policy."""

    run: RunName
    episodes: int = 100
    """Fresh episodes."""
    seed: int = 0
    """Which episodes: another seed, other episodes."""
    checkpoint: str = "newest"
    """newest, best, or a checkpoint's name."""
    out: Out = Path("runs")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Runs:
    """List runs, newest first."""

    limit: int = 50
    """How many."""
    out: Out = Path("runs")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Show:
    """Show one run: where it stands, what became of every transition, what happened."""

    run: RunName
    out: Out = Path("runs")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Compare:
    """Show how two runs differ: configuration, code and machine, the first update that is not the same, results."""

    a: Positional[Annotated[str, arg(metavar="A", help="Name of a run.")]]
    b: Positional[Annotated[str, arg(metavar="B", help="Name of another.")]]
    out: Out = Path("runs")
    out_b: Path | None = None
    """Output directory of B, if it is another one."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """Write what a run did, or two runs side by side, as one HTML page that needs nothing else."""

    run: RunName
    other: Positional[Annotated[str, arg(metavar="RUN2", help="Another run, to be drawn over the first.")]] = ""
    out: Out = Path("runs")
    out_b: Path | None = None
    """Output directory of RUN2, if it is another one."""
    output: Path | None = None
    """The file; report.html in the directory of RUN if not given (report-with-RUN2.html with two)."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Export:
    """Write the numbers of a run, finished or not, to TensorBoard or W&B, out of its record."""

    run: RunName
    to: Literal["tensorboard", "wandb"]
    """tensorboard: event files. wandb: a run of W&B of its own, with WANDB_MODE=offline as files."""
    dir: Path | None = None
    """Where the files go; export in the directory of RUN if not given."""
    project: str = ""
    """Of W&B; as the run's configuration says if not given."""
    out: Out = Path("runs")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Reproduce:
    """Make a run again from its ledger, and compare every fragment and update; exits with 1 if one differs."""

    run: RunName
    out: Out = Path("runs")
    updates: int | None = None
    """How many; all that are recorded if not given."""
    engine: Literal["ray", "inline"] | None = None
    """To make it with; as when the run was made if not given. Both give the same bits."""
    bisect: Annotated[str, arg(metavar="GOOD..BAD")] = ""
    """Find the first commit between these two with which the run is not the same any more."""
    repo: Path | None = None
    """Repository to bisect; the one that truestep itself runs from if not given."""
    step_s: float = 600.0
    """Seconds that one commit may take when bisecting."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Show an episode of an evaluation, or of training, again, and compare it with its record; exit code 1 if it
    differs."""

    run: RunName
    episode: int
    """Its number in the evaluation, from 0; with --training, in the order of the run's ledger."""
    update: int | None = None
    """Of the evaluation after this update; of the newest whose checkpoint is there if not given."""
    render: Literal["human"] | None = None
    """human: in the environment's own window."""
    frames: Path | None = None
    """A new directory for its pictures, as PNG files."""
    training: bool = False
    """An episode of training: the run is made again up to there; it is shown in numbers, not rendered."""
    out: Out = Path("runs")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Drill:
    """Run short trainings in which something goes wrong on purpose, and tell what came of it."""

    drills: Positional[
        Annotated[tuple[str, ...], arg(metavar="DRILL", help="Which; `truestep drill --list` says what there is.")]
    ] = ()
    all: bool = False
    """Every drill."""
    list: bool = False
    """Say what there is, and do nothing."""
    out: Out = Path("runs/drills")
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class CheckEnv:
    """Find out whether an environment keeps its contract, and how fast it is. Exit code 1: a contract is broken."""

    env: EnvId
    lanes: int = 2
    """Environments that are played at once."""
    ticks: int = 500
    """Steps of each."""
    seed: int = 0
    """Of everything that is drawn."""
    set_: Annotated[UseAppendAction[tuple[str, ...]], arg(name="set", metavar="KEY=VALUE")] = ()
    """Any value of the environment, as in --set env.kwargs.gravity=9.8; may be repeated."""
    json: Json = False


@dataclass(frozen=True, kw_only=True)
class Top:
    """Watch a live run in the terminal: rates, returns, what holds it up, every process; q leaves, the run goes on."""

    run: RunName
    address: str = ""
    """host:port of the driver, for a run whose record is not on this machine."""
    token_file: Path | None = None
    """File with the token that the run wants of whoever looks on; as $TRUESTEP_METRICS_TOKEN_FILE and the record have
    it if not given."""
    interval: float = 2.0
    """Seconds between two looks."""
    once: bool = False
    """Print one screen and end."""
    out: Out = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """Show what a process of a live run is doing, without stopping it: flame graph, stacks, torch trace or memory."""

    run: RunName
    process: str
    """driver, actor-N or learner-N (rank-N is the same), as the driver lists them."""
    kind: Literal["flame", "stacks", "torch", "memory"] = "flame"
    """flame: where the time goes. stacks: all threads, now. torch: a trace of a learner's updates. memory: what is
    allocated and kept."""
    seconds: float = 10.0
    """How long to look, up to 300."""
    rate: float = 100.0
    """Samples a second of a flame graph."""
    idle: bool = False
    """Count threads that wait, too: for environments that sleep or wait for something else."""
    sampler: Literal["auto", "py-spy", "inside"] = "auto"
    """py-spy: from outside, on the process's machine. inside: by a thread of the process. auto: py-spy if it can."""
    output: Path | None = None
    """File to write; made from run, process and kind if not given. Text goes to the terminal."""
    address: str = ""
    """host:port of the driver, for a run whose record is not on this machine."""
    token_file: Path | None = None
    """File with the token that the run wants of whoever looks on; as $TRUESTEP_METRICS_TOKEN_FILE and the record have
    it if not given."""
    out: Out = Path("runs")


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Say what this machine is like and, of a live run, who can reach what and what protects it. Exit code 1: something
    is open to strangers."""

    run: Positional[
        Annotated[str, arg(metavar="RUN", help="A run that is being driven; the machine alone if none.")]
    ] = ""
    address: str = ""
    """host:port of the driver, for a run that is driven on another machine and has processes on this one."""
    token_file: Path | None = None
    """File with the token that the run wants of whoever looks on."""
    out: Out = Path("runs")
    json: Json = False


Command = (
    Train
    | Resume
    | Evaluate
    | Runs
    | Show
    | Compare
    | Report
    | Export
    | Reproduce
    | Replay
    | Drill
    | CheckEnv
    | Top
    | Profile
    | Doctor
)


def main(arguments: list[str] | None = None) -> None:
    """Entry point of the command; ends the process with the exit code."""
    commands: dict[str, Any] = {
        "train": Train,
        "evaluate": Evaluate,
        "resume": Resume,
        "runs": Runs,
        "show": Show,
        "compare": Compare,
        "report": Report,
        "export": Export,
        "reproduce": Reproduce,
        "replay": Replay,
        "drill": Drill,
        "check": CheckEnv,
        "top": Top,
        "profile": Profile,
        "doctor": Doctor,
    }
    command = tyro.extras.subcommand_cli_from_dict(commands, prog="truestep", description=__doc__, args=arguments)
    sys.exit(run_command(command))


def run_command(command: Command) -> int:
    """Carry out a command; returns the exit code. Errors of ours are one message, never a traceback."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")  # before numpy is imported: a second thread in BLAS changes the last bits
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))  # the user's own package, as with `python -m`
    try:
        from deploy import commands

        return commands.carry_out(command)
    except TruestepError as error:
        print_error(error)
        return error.exit_code
    except KeyboardInterrupt:
        print("truestep: interrupted", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED


def print_error(error: TruestepError) -> None:
    """The message, and the long material (a traceback from the user's own code) after it."""
    print(f"truestep: {error}", file=sys.stderr)
    if error.detail and error.exit_code != EXIT_BAD_INPUT:
        print(error.detail, file=sys.stderr)
