"""IMPALA against RLlib: the work is the same for all, the record says what the flow was, the promise is judged."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from benchmarks import contenders, throughput
from benchmarks.contenders import ROOT
from benchmarks.peers import rllib_pong
from benchmarks.peers.impala_setting import (
    CARTPOLE,
    PONG,
    ImpalaOrder,
    ImpalaSetting,
    impala_parser,
    parse_impala_order,
)
from benchmarks.rates import Rate
from benchmarks.rounds import Measured
from benchmarks.throughput_impala import OURS, RLLIB, TARGETS, judge, words
from benchmarks.truestep_impala import DROPPED, IDLE_SHARE, LAG_MAX, LAG_MEDIAN, configuration, flow_facts
from common.run_records import UpdateRecord

SETTING = ImpalaSetting(env=CARTPOLE, actors=2, lanes=8, rows=4)


def measured(ours: float, theirs: float | None) -> Measured:
    """Three equal rounds."""
    facts = {IDLE_SHARE: 0.25, LAG_MEDIAN: 2.0, LAG_MAX: 5.0, DROPPED: 1.0}
    rates = {OURS: ours} | ({} if theirs is None else {RLLIB: theirs})
    readings = {
        name: [Rate(steps=round(rate), seconds=1.0, facts=facts if name == OURS else {})] * 3
        for name, rate in rates.items()
    }
    skipped = {RLLIB: "not there"} if theirs is None else {}
    return Measured(readings=readings, threads=dict.fromkeys(readings, 1), skipped=skipped)


@pytest.mark.parametrize(("theirs", "kept"), [(14.0, True), (15.0, False), (None, None)])
def test_seven_times_is_promised(theirs: float | None, kept: bool | None) -> None:
    """99 is 7.07 times 14 and 6.6 times 15; without RLlib nothing is judged."""
    assert judge(TARGETS["impala"], measured(99.0, theirs))["promises"] == {"7 times rllib": kept}


def test_words_say_what_was_judged() -> None:
    """Rates, ratios, idle share, lag, dropped steps, verdict, and who is missing."""
    text = words(judge(TARGETS["pong"], measured(99.0, 50.0)))
    for part in ("ALE/Pong-v5 2x32x16", "1.98 (1.98 to 1.98)", "idle 25%", "lag 2 (median) to 5", "1.00%", "NOT KEPT"):
        assert part in text
    assert "rllib skipped: not there" in words(judge(TARGETS["pong"], measured(99.0, None)))


def record(update: int, lag: float, *, dropped: int = 0, learn: float = 0.5) -> UpdateRecord:
    """An update of 100 steps that took `learn` seconds and a tenth for its copy."""
    seconds = {"seconds_learn": learn, "seconds_sync_backup": 0.1, "seconds_sync_reduce": 7.0, "loss": 9.0}
    return UpdateRecord(
        run="r",
        update=update,
        term=0,
        version=update,
        env_steps=100 * update,
        parameter_digest="",
        state_digest="",
        chain="",
        produced=0,
        trained=0,
        in_flight=0,
        dropped={"stale": dropped},
        fragments_lost=0,
        lag=lag,
        statistics=seconds,
    )


def test_the_flow_of_a_reading_by_hand() -> None:
    """Updates 3 to 5 of five lie in it: busy 3 x 0.6 s of 4 s; what was dropped before it does not count."""
    lags = [9.0, 9.0, 1.0, 4.0, 2.0]
    updates = [
        record(1 + k, lag, dropped=dropped)
        for k, (lag, dropped) in enumerate(zip(lags, (0, 30, 30, 50, 70), strict=True))
    ]
    facts = flow_facts(updates, (200, 500), 4.0)
    assert facts == pytest.approx({IDLE_SHARE: 1.0 - 1.8 / 4.0, LAG_MEDIAN: 2.0, LAG_MAX: 4.0, DROPPED: 40.0})


def test_a_reading_from_the_start_has_nothing_before_it() -> None:
    """All that was dropped counts."""
    assert flow_facts([record(1, 0.0, dropped=3)], (0, 100), 1.0)[DROPPED] == 3.0


@pytest.mark.parametrize("env", [CARTPOLE, PONG])
def test_truestep_gets_the_work_of_the_peers(env: str) -> None:
    """Actors, lanes, rows, one fragment an update and one pass; collected asynchronously; nothing saved or judged."""
    setting = ImpalaSetting(env=env, actors=3, lanes=8, rows=4)
    order = ImpalaOrder(setting=setting, seconds=1.0, warmup_s=0.0, threads=1, seed=7)
    config = configuration(order)
    assert config.asynchronous and config.rows_per_update == setting.rows_per_update == 32
    assert (config.actors.num, config.seed, config.impala.epochs, config.impala.minibatches) == (3, 7, 1, 1)
    assert config.evaluation.every == config.checkpoint.every == 0
    assert config.env.id.endswith(env) and (config.env.vectorise == "own") == (env == PONG)


def test_a_contender_gets_the_whole_setting() -> None:
    """Its command line reads back as the order, with what it added itself."""
    command = contenders.rllib(learners=1).with_threads(2).command(SETTING, seconds=3.0, warmup_s=1.5)
    parser = impala_parser("")
    parser.add_argument("--vectorise")
    parser.add_argument("--learners", type=int)
    parser.add_argument("--module")
    order, own = parse_impala_order(parser, command[3:])
    assert (order.setting, order.seconds, order.warmup_s, order.threads) == (SETTING, 3.0, 1.5, 2)
    assert own.learners == 1 and own.module == "own"


def test_the_promise_is_against_rllib_with_its_own_model() -> None:
    """The network that was written for it here is measured beside it, under a name of its own."""
    ours = contenders.rllib(our_module=True)
    assert "--module=ours" in ours.flags and ours.name != RLLIB == contenders.rllib().name
    assert TARGETS["pong"].rllib_module


def test_frames_as_rllibs_model_takes_them() -> None:
    """Channels last, from -1 to 1."""
    pixels = np.zeros((2, 4, 84, 84), np.uint8)
    pixels[1, 3, 5, 7] = 192
    seen = rllib_pong.seen(pixels)
    assert seen.shape == (2, 84, 84, 4) and seen.dtype == np.float32
    assert seen[1, 5, 7, 3] == 0.5 and seen[0, 0, 0, 0] == -1.0


@pytest.mark.parametrize("flags", [["--actors=0"], ["--rows=0"], ["--env=Other-v0"], ["--seconds=-1"]])
def test_an_order_that_means_nothing_is_refused(flags: list[str]) -> None:
    """With exit code 2."""
    with pytest.raises(SystemExit, match="2"):
        parse_impala_order(impala_parser(""), flags)


@pytest.mark.parametrize(
    ("module", "package"), [("benchmarks.peers.rllib_impala", "ray.rllib"), ("benchmarks.peers.plain_pong", "ale_py")]
)
def test_a_missing_peer_says_what_to_install(module: str, package: str) -> None:
    """Exit code 3, by which the benchmark leaves it out."""
    hide = (
        f"import sys; sys.modules[{package!r}] = None; import runpy; runpy.run_module({module!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", hide], cwd=ROOT, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 3 and "install truestep[" in done.stderr


def test_a_work_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The message names those that do."""
    monkeypatch.setattr(sys, "argv", ["throughput", "chess"])
    with pytest.raises(SystemExit):
        throughput.main()
    assert "allowed: ppo, impala, pong" in capsys.readouterr().err


def test_returns_of_the_plain_peer_by_hand() -> None:
    """Rewards 1; γ = 0.99: a cut row is followed by the value behind it, a terminated one by nothing."""
    pytest.importorskip("ale_py")
    from benchmarks.peers.plain_pong import n_step_returns

    column = np.array([[False], [True], [False], [False]])
    reward, value = np.ones((4, 1), np.float32), np.array([[1.0], [2.0], [3.0], [4.0], [5.0]], np.float32)
    returns = n_step_returns(reward, value, terminated=column, cut=np.array([[False], [False], [True], [False]]))
    assert returns[:, 0] == pytest.approx([1 + 0.99 * 1, 1.0, 1 + 0.99 * 4, 1 + 0.99 * 5])
