"""Environments of the benchmarks, `benchmarks.envs:truestep-bench/<Name>-v0`.

Three small ones are solved only by using all they show; `SleepyCartPole` is CartPole that sleeps.
"""

from __future__ import annotations

import gymnasium

PIXEL_CATCH = "benchmarks.envs:truestep-bench/PixelCatch-v0"
DICT_GOAL = "benchmarks.envs:truestep-bench/DictGoal-v0"
DELAYED_CUE = "benchmarks.envs:truestep-bench/DelayedCue-v0"
SLEEPY_CARTPOLE = "benchmarks.envs:truestep-bench/SleepyCartPole-v0"

gymnasium.register("truestep-bench/PixelCatch-v0", entry_point="benchmarks.envs.pixel_catch:PixelCatchEnv")
gymnasium.register("truestep-bench/DictGoal-v0", entry_point="benchmarks.envs.dict_goal:DictGoalEnv")
gymnasium.register("truestep-bench/DelayedCue-v0", entry_point="benchmarks.envs.delayed_cue:DelayedCueEnv")
gymnasium.register(
    "truestep-bench/SleepyCartPole-v0", entry_point="benchmarks.envs.sleepy:SleepyCartPole", max_episode_steps=500
)
