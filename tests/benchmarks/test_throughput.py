"""The judgement over readings, and the command of a contender."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import contenders
from benchmarks.contenders import NotInstalled, take_reading
from benchmarks.peers.setting import Setting, parse_order
from benchmarks.rates import Rate
from benchmarks.rounds import Measured
from benchmarks.throughput_ppo import OURS, OURS_NO_METRICS, PLAIN, SB3, TARGETS, judge, words
from benchmarks.truestep_ppo import configuration
from benchmarks.truestep_reading import FEATURE_CPU, PROCESS_CPU, values

TARGET = TARGETS["256x32"]


def readings(**rates: float) -> Measured:
    """Three equal rounds at these rates; metrics took 2 % of the CPU time unless told otherwise."""
    share = rates.pop("share", 0.02)
    names = {"ours": OURS, "off": OURS_NO_METRICS, "plain": PLAIN, "sb3": SB3}
    facts = {"metrics_cpu_s": share, "process_cpu_s": 1.0}
    table = {
        names[name]: [Rate(steps=round(rate), seconds=1.0, facts=facts if name == "ours" else {})] * 3
        for name, rate in rates.items()
    }
    return Measured(readings=table, threads=dict.fromkeys(table, 1), skipped={} if SB3 in table else {SB3: "absent"})


def promises(**rates: float) -> list[bool | None]:
    """Over plain, over SB3, metrics."""
    return list(judge(TARGET, readings(**rates))["promises"].values())


def test_all_kept() -> None:
    """1.5 times a plain peer that is itself 2.5 times SB3; metrics at half a percent."""
    assert promises(ours=150, off=150, plain=100, sb3=40, share=0.005) == [True, True, True]


def test_a_weak_opponent_does_not_count() -> None:
    """Plain at 2.1 times SB3 is no opponent: beating it keeps no promise."""
    assert promises(ours=210, off=210, plain=105, sb3=50, share=0.005)[0] is False


def test_too_slow_is_not_kept() -> None:
    """1.2 times the plain peer, 3 times SB3."""
    assert promises(ours=120, off=120, plain=100, sb3=40, share=0.005)[:2] == [False, False]


def test_costly_metrics_are_not_kept() -> None:
    """2 % of the CPU time is above 1 %."""
    assert promises(ours=150, off=150, plain=100, sb3=40, share=0.02)[2] is False


def test_without_sb3_the_opponent_cannot_be_judged() -> None:
    """A missing peer leaves its promises open and says why; a ratio that falls short is still a failure."""
    assert promises(ours=150, off=150, plain=100, share=0.005) == [None, None, True]
    assert promises(ours=120, off=120, plain=100, share=0.005)[0] is False
    assert judge(TARGET, readings(ours=150, off=150, plain=100))["skipped"] == {SB3: "absent"}


def test_words_say_everything_that_was_judged() -> None:
    """Rates, ratios, qualification, metrics, verdicts."""
    text = words(judge(TARGET, readings(ours=150_000, off=153_000, plain=100_000, sb3=50_000)))
    for part in ("150,000 (150,000 to 150,000)", "1.50 (1.50 to 1.50)", "does NOT count", "2.00%", "1.020", "NOT KEPT"):
        assert part in text


def test_a_contender_gets_the_whole_setting() -> None:
    """Its command line reads back as the order."""
    setting = Setting(lanes=16, rows=128, minibatch=256)
    command = contenders.plain(allocator=True).with_threads(2).command(setting, seconds=3.0, warmup_s=1.5)
    order = parse_order("", command[3:])
    assert (order.setting, order.seconds, order.warmup_s) == (setting, 3.0, 1.5)
    assert (order.threads, order.allocator) == (2, True)


@pytest.mark.parametrize("flags", [["--lanes=0"], ["--threads=0"], ["--seconds=0"], ["--seconds=nan"]])
def test_an_order_that_means_nothing_is_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The message says what was got and what is allowed."""
    with pytest.raises(SystemExit):
        parse_order("", flags)
    assert "allowed" in capsys.readouterr().err


def contender(tmp_path: Any, code: str) -> contenders.Contender:
    """One whose interpreter is a shell script."""
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{code}\n")
    script.chmod(0o755)
    return contenders.Contender(name="fake", module="m", python=str(script))


def test_a_reading_is_taken_from_a_process(tmp_path: Any) -> None:
    """Last line of its standard output."""
    fake = contender(tmp_path, 'echo banner; echo \'{"steps": 6, "seconds": 2.0, "facts": {}}\'')
    assert take_reading(fake, TARGET.setting, seconds=1.0, warmup_s=0.0).steps_per_s == 3.0


def test_a_missing_peer_says_why(tmp_path: Any) -> None:
    """Exit code 3 is a reason to skip, not a failure."""
    with pytest.raises(NotInstalled, match="install truestep"):
        take_reading(
            contender(tmp_path, "echo 'install truestep[peers]' >&2; exit 3"), TARGET.setting, seconds=1.0, warmup_s=0.0
        )


def test_a_failed_contender_ends_the_benchmark(tmp_path: Any) -> None:
    """With its name, its setting and its own last words."""
    with pytest.raises(RuntimeError, match=r"fake at 256x32 ended with 1(.|\n)*no memory"):
        take_reading(contender(tmp_path, "echo 'no memory' >&2; exit 1"), TARGET.setting, seconds=1.0, warmup_s=0.0)


def test_truestep_gets_the_work_of_the_peers() -> None:
    """Lanes, rows, minibatch, lag; nothing is evaluated or saved inside a reading."""
    order = parse_order("", ["--lanes=256", "--rows=32", "--minibatch=2048"])
    config = configuration(order, policy_lag=0, metrics=False)
    assert (config.rows_per_update, config.ppo.minibatch, config.ppo.epochs) == (8192, 2048, 4)
    assert (config.policy_lag, config.evaluation.every, config.checkpoint.every) == (0, 0, 0)
    assert config.net.hidden == (64, 64) and not config.metrics.enabled


def test_metrics_are_read_from_prometheus_text() -> None:
    """Comments and labelled series are passed over; a series that is not there is an error."""
    text = f'# HELP {PROCESS_CPU} x\n{PROCESS_CPU} 2.5\n{FEATURE_CPU} 1e-03\nother{{a="b"}} 7\n'
    assert values(text, {PROCESS_CPU, FEATURE_CPU}) == {PROCESS_CPU: 2.5, FEATURE_CPU: 0.001}
    with pytest.raises(ValueError, match="missing_total"):
        values(text, {"missing_total"})
