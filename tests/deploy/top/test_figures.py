"""From scrapes to figures: rates worked out by hand, over restarts and resumes."""

from __future__ import annotations

import pytest

from deploy.top.figures import Figures, figures_of
from deploy.top.scraping import Window
from tests.deploy.top.looks import scrape, window

STEPS, UPDATES = "truestep_driver_env_steps_total", "truestep_driver_updates_total"
ACTOR_STEPS = "truestep_actor_env_steps_total"


def figures(of: Window) -> Figures:
    found = figures_of(of)
    assert found is not None
    return found


def test_before_the_first_scrape_there_are_none() -> None:
    """And after it there are totals, but no rates."""
    assert figures_of(Window(10)) is None
    first = figures(window(scrape(0, {STEPS: 500, UPDATES: 5}, {"actor-0": {ACTOR_STEPS: 100}})))
    assert (first.progress.steps, first.progress.steps_per_s) == (500, None)
    assert (first.actors[0].name, first.actors[0].steps_per_s, first.actors[0].waiting) == ("actor-0", None, None)


def test_rates_are_over_the_whole_window() -> None:
    """500 steps to 900 in four seconds, however many scrapes lie between."""
    seen = window(scrape(0, {STEPS: 500}), scrape(1, {STEPS: 500}), scrape(4, {STEPS: 900}))
    assert figures(seen).progress.steps_per_s == 100


def test_what_is_older_than_the_window_is_forgotten() -> None:
    """Of 30 s only the last ones count, but two scrapes always do."""
    scrapes = [scrape(second, {STEPS: 0 if second < 20 else (second - 20) * 7}) for second in range(0, 31, 2)]
    assert figures(window(*scrapes)).progress.steps_per_s == 7
    far = window(scrape(0, {STEPS: 0}), scrape(100, {STEPS: 500}))
    assert figures(far).progress.steps_per_s == 5


def test_a_process_that_was_started_again_has_no_rate_before_its_second_look() -> None:
    """Its counters begin at 0: that is another instance, no negative rate, and the driver's totals go on."""
    before = scrape(0, {STEPS: 500}, {"actor-0": {ACTOR_STEPS: 5000}})
    after = scrape(2, {STEPS: 700}, {"actor-0": {ACTOR_STEPS: 10}}, lease="b")
    seen = figures(window(before, after))
    assert (seen.progress.steps, seen.progress.steps_per_s, seen.actors[0].steps_per_s) == (700, None, None)
    later = scrape(4, {STEPS: 900}, {"actor-0": {ACTOR_STEPS: 210}}, lease="b")
    seen = figures(window(before, after, later))
    assert (seen.progress.steps_per_s, seen.actors[0].steps_per_s) == (100, 100)


def test_a_counter_that_went_back_has_no_rate() -> None:
    """Whatever was restarted under the same name."""
    assert figures(window(scrape(0, {STEPS: 500}), scrape(2, {STEPS: 4}))).progress.steps_per_s is None


def test_the_time_of_an_actor_is_shared_out() -> None:
    """Of ten seconds six were fragments: four in the environment, one in the policy; the rest it waited."""
    seconds = {
        "truestep_actor_collect_seconds_sum": 6.0,
        "truestep_actor_environment_seconds_total": 4.0,
        "truestep_actor_policy_seconds_total": 1.0,
        "process_cpu_seconds_total": 7.5,
        "process_resident_memory_bytes": 1e6,
    }
    zero = dict.fromkeys(seconds, 0.0)
    (row,) = figures(window(scrape(0, {}, {"actor-0": zero}), scrape(10, {}, {"actor-0": seconds}))).actors
    shares = (row.environment, row.policy, row.waiting, row.cpu)
    assert shares == pytest.approx((0.4, 0.1, 0.4, 0.75)) and row.memory_bytes == 1e6


def test_a_fragment_longer_than_the_window_is_no_share_above_one() -> None:
    """Its 30 s are told when it ends; nobody works 300 % of the time."""
    phase = 'truestep_learner_phase_seconds_sum{{phase="{}"}}'.format
    actor = [{"truestep_actor_environment_seconds_total": value} for value in (0.0, 30.0)]
    rank = [{phase("learn"): value, phase("close"): value / 3} for value in (0.0, 30.0)]
    looks = [scrape(10 * n, {}, {"actor-0": actor[n], "learner-0": rank[n]}) for n in (0, 1)]
    seen = figures(window(*looks))
    assert seen.actors[0].environment == 1.0
    assert seen.ranks[0].phases == pytest.approx({"learn": 0.75, "close": 0.25})
    assert seen.ranks[0].waiting == pytest.approx(0.0)


def test_who_is_silent_is_in_its_row() -> None:
    """By index, with the reason; the others have their figures."""
    look = scrape(0, {}, {"actor-2": {}, "actor-0": {}}, silent={"actor-10": "refused", "learner-0": "no answer"})
    seen = figures(window(look))
    assert [(row.name, row.silent) for row in seen.actors] == [
        ("actor-0", ""),
        ("actor-2", ""),
        ("actor-10", "refused"),
    ]
    assert [(row.name, row.silent) for row in seen.ranks] == [("learner-0", "no answer")]


def test_the_verdict_in_force_is_the_one_that_is_one() -> None:
    """With the share of the time under each, and the ring in words."""
    driver = {
        'truestep_driver_stall{verdict="healthy"}': 0.0,
        'truestep_driver_stall{verdict="learner_bound"}': 1.0,
        'truestep_driver_stall_seconds_total{verdict="healthy"}': 30.0,
        'truestep_driver_stall_seconds_total{verdict="learner_bound"}': 10.0,
        'truestep_driver_stall_seconds_total{verdict="sync_bound"}': 0.0,
        'truestep_driver_stage_state{stage="ticks"}': 2.0,
        'truestep_driver_stage_state{stage="drawn"}': 0.0,
        'truestep_driver_stage_state{stage="adopted"}': 9.0,
    }
    stall = figures(window(scrape(0, driver))).stall
    assert stall.verdict == "learner_bound"
    assert stall.shares == {"healthy": 0.75, "learner_bound": 0.25}
    assert stall.stages == {"ticks": "blocked", "drawn": "moving", "adopted": "unknown"}


def test_a_run_that_tells_little_gives_what_it_tells() -> None:
    """An older driver, or one that has only just begun: nothing is made up."""
    seen = figures(window(scrape(0, {})))
    assert (seen.stall.verdict, seen.flow.lag, seen.progress.evaluation, seen.host_memory) == ("", None, None, None)
    assert (seen.integrity.mismatches, seen.actors, seen.ranks) == (0.0, (), ())


def test_returns_are_the_mean_over_actors_that_have_one() -> None:
    """One without an episode yet, or with NaN, counts in no mean."""
    returns = "truestep_actor_episode_return_mean"
    look = scrape(0, {}, {"actor-0": {returns: 10.0}, "actor-1": {returns: 30.0}, "actor-2": {returns: float("nan")}})
    assert figures(window(look)).progress.return_mean == 20.0


def test_troubles_are_added_up() -> None:
    """Over causes and processes; ranks skip the same steps, which count once."""
    driver = {
        'truestep_driver_sync_mismatches_total{cause="digest"}': 2,
        'truestep_driver_sync_mismatches_total{cause="parameters"}': 1,
        "truestep_driver_actor_restarts_total": 4,
        "truestep_driver_rank_restarts_total": 1,
        'truestep_driver_checkpoints_total{result="ok"}': 7,
        'truestep_driver_checkpoints_total{result="failed"}': 2,
        'truestep_driver_dropped_transitions_total{reason="stale"}': 5,
        'truestep_driver_dropped_transitions_total{reason="corrupt"}': 6,
    }
    skipped = "truestep_learner_skipped_gradient_steps_total"
    look = scrape(0, driver, {"learner-0": {skipped: 3}, "learner-1": {skipped: 3}})
    seen = figures(window(look))
    integrity = seen.integrity
    assert (integrity.mismatches, integrity.restarts, integrity.skipped_steps) == (3, 5, 3)
    assert (integrity.checkpoints, integrity.checkpoints_failed, seen.flow.dropped) == (7, 2, 11)


def test_a_gpu_is_told_where_there_is_one() -> None:
    """With how full it is, and whether it is the wrong one."""
    gpu = {
        "truestep_process_gpu_utilization_ratio": 0.5,
        "truestep_process_gpu_memory_used_bytes": 20.0,
        "truestep_process_gpu_memory_total_bytes": 80.0,
        "truestep_process_gpu_misplaced": 1.0,
    }
    with_gpu, without = figures(window(scrape(0, {}, {"learner-0": gpu, "learner-1": {}}))).ranks
    assert (with_gpu.gpu, with_gpu.gpu_memory, with_gpu.misplaced) == (0.5, 0.25, True)
    assert (without.gpu, without.gpu_memory, without.misplaced) == (None, None, False)
