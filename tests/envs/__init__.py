"""Environments with one flaw each, and their well-behaved twins: `tests.envs:truestep-tests/<Name>-v0`."""

from __future__ import annotations

from functools import partial

import gymnasium

from tests.envs.counting import CountingVectorEnv
from tests.envs.drawn import DrawnVectorEnv
from tests.envs.faulty import NaNVectorEnv

PLAIN = {
    "Ending": "endings:EndingEnv",
    "TruncationOnly": "endings:TruncationOnlyEnv",
    "TerminationOnly": "endings:TerminationOnlyEnv",
    "BothFlags": "endings:BothFlagsEnv",
    "Marker": "endings:MarkerEnv",
    "Drawn": "drawn:DrawnEnv",
    "DiscreteStart": "spaces:DiscreteStartEnv",
    "DictObs": "spaces:DictObsEnv",
    "WrongDtype": "faulty:WrongDtypeEnv",
    "Faulty": "faulty:FaultyEnv",
    "FaultyCartPole": "faulty:FaultyCartPoleEnv",
    "CrowdedCartPole": "faulty:CrowdedCartPoleEnv",
    "Leaky": "faulty:LeakyEnv",
    "Clock": "drawing:ClockEnv",
    "NoEnv": "faulty:no_env",
    "Needs": "faulty:needs",
    "NotInstalled": "faulty:not_installed",
    "GlobalRng": "drawing:GlobalRngEnv",
    "SeedIgnoring": "drawing:SeedIgnoringEnv",
    "StatefulObject": "drawing:StatefulObjectEnv",
    "Opaque": "drawing:OpaqueEnv",
    "Jitter": "jitter:JitterEnv",
    "SpinningCartPole": "spinning:SpinningCartPoleEnv",
}
COUNTING = {
    "Counting": {},
    "CountingSameStep": {"mode": "SameStep"},
    "CountingDisabled": {"mode": "Disabled"},
    "CountingUndeclared": {"mode": None},
    "CountingHidesFinal": {"mode": "SameStep", "hides_final": True},
    "CountingLies": {"mode": "SameStep", "declared": "NextStep"},
    "CountingLiesAndHides": {"mode": "SameStep", "declared": "NextStep", "hides_final": True},
}
DRAWN = {"DrawnVector": "NextStep", "DrawnVectorSameStep": "SameStep"}
NAN = {"NaNReward": "NextStep", "NaNRewardSameStep": "SameStep", "NaNRewardDisabled": "Disabled"}

for _name, _entry in PLAIN.items():
    gymnasium.register(f"truestep-tests/{_name}-v0", entry_point=f"tests.envs.{_entry}")
for _name, _options in COUNTING.items():
    gymnasium.register(
        f"truestep-tests/{_name}-v0",
        entry_point="tests.envs.counting:CountingEnv",
        vector_entry_point=partial(CountingVectorEnv, **_options),
    )
for _name, _mode in DRAWN.items():
    gymnasium.register(f"truestep-tests/{_name}-v0", vector_entry_point=partial(DrawnVectorEnv, mode=_mode))
for _name, _mode in NAN.items():
    gymnasium.register(
        f"truestep-tests/{_name}-v0",
        entry_point="tests.envs.faulty:NaNRewardEnv",
        vector_entry_point=partial(NaNVectorEnv, mode=_mode),
    )
