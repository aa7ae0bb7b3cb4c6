"""Statistics of what is trained on, and what observations and rewards become by them.

    update k of the weights of version v, whose statistics are S:

    network sees observations by S ─────────────────────────────────────────┐
    fragments ──► blocks ──► one exchange ──► merged in the order of keys ──┼─► steps ──► weights with S + blocks
                                                     │                      │
                                                     └─► rewards by those ──┘

Observations are seen by the statistics from *before* the update, in all its steps: by those that its weights act with,
so a fragment without lag is on-policy in the first step, and with lag the ratio to the recorded log-probability is that
of two functions of raw observations, as V-trace and PPO have it. Rewards have been seen by nobody, so the update's own
returns count: no update is trained on rewards of another scale, not even the first.

A block is taken from a fragment where that is trained on, and merged where every rank has heard of every block. It
cannot be late, doubled or out of order apart from its fragment, and the intake refuses those.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from common.compensated import Block, RunningMoments
from common.errors import CheckpointError
from common.fragment import Fragment, FragmentLayout
from common.normalize import InputScale, ProcessingConfig, discounted_returns, normalised_parts
from learner.intake import Accepted
from learner.parallel.group import Group
from learner.reports import FragmentKey


class Normaliser:
    """One rank's statistics, alike on all, and what is made of them. Where nothing is normalised it has none.

    Attributes:
        moments: of W quantities: the elements of the observation parts that are normalised, then the discounted return.
            All of one width, over the same rows: the valid ones.
        refused: fragments whose numbers were not finite, or would have left statistics that are not; of the last
            `merge`.
    """

    def __init__(self, config: ProcessingConfig, layout: FragmentLayout, discount: float) -> None:
        assert config.normalise_rewards == layout.returns
        self._config = config
        self._discount = discount
        self._parts = normalised_parts(layout.observation) if config.normalise_observations else []
        self._observed = sum(layout.observation[name].size for name, _ in self._parts)
        self.moments = RunningMoments(self._observed + config.normalise_rewards)
        self.refused = 0

    @property
    def width(self) -> int:
        """W; 0 where nothing is normalised."""
        return self._observed + self._config.normalise_rewards

    # ---- what it says ----------------------------------------------------------------------------------------------

    def input_scale(self) -> InputScale | None:
        """How a network sees observations now; None where it sees them as they are. Before any row: clipped only."""
        if not self._parts:
            return None
        mean, factor = self.moments.mean()[: self._observed], np.ones(self._observed)
        if self.moments.count:
            factor = self._config.factor(self.moments.variance()[: self._observed])
        return InputScale(mean=mean, factor=factor, clip=self._config.observation_clip)

    def extra(self) -> dict[str, Any]:
        """What travels with the weights."""
        scale = self.input_scale()
        return {} if scale is None else scale.to_plain()

    def processed(self, accepted: Accepted) -> Accepted:
        """With rewards as an algorithm sees them; the same object where that is as they are."""
        if not (self._config.shapes_rewards or self._config.normalise_rewards):
            return accepted
        reward = self._config.shaped(accepted.fragment.reward)
        if self._config.normalise_rewards and self.moments.count:
            reward *= self._config.factor(self.moments.variance()[-1:])
        with np.errstate(over="ignore"):  # becomes inf, and the gradient step that it spoils is skipped and named
            fragment = dataclasses.replace(accepted.fragment, reward=reward.astype(np.float32))
        return dataclasses.replace(accepted, fragment=fragment)

    def statistics(self) -> dict[str, float]:
        """For the record of an update, alike on all ranks."""
        if not self.width:
            return {}
        said = {"normaliser_rows": self.moments.count, "normaliser_refused": float(self.refused)}
        if self._config.normalise_rewards:
            said["return_deviation"] = float(np.sqrt(self.moments.variance()[-1]))
        return said

    # ---- what it learns --------------------------------------------------------------------------------------------

    def merge(self, keys: Sequence[FragmentKey], accepted: Sequence[Accepted], group: Group) -> None:
        """Add the fragments of an update, whichever rank decoded them: the same bits on every rank of any group.

        Args:
            keys: all fragments of the update; blocks are merged in this order, one for each key at most.
            accepted: those of this rank.

        Raises:
            SyncError: the ranks fell apart.
        """
        self.refused = 0
        if not (self.width and keys):
            return
        place_of = {key: place for place, key in enumerate(keys)}
        most = -(-len(keys) // len(group.ranks))
        slots = np.zeros((most, 2 + 3 * self.width))
        for slot, each in zip(slots, accepted, strict=False):
            header = each.fragment.header
            key = FragmentKey(actor=header.actor, incarnation=header.incarnation, sequence=header.sequence)
            slot[0] = place_of[key] + 1  # 0 is an empty slot
            slot[1:] = self._block(each.fragment).to_numbers()
        heard = group.exchange(slots.reshape(-1)).reshape(-1, slots.shape[1])
        by_place = {int(slot[0]): slot[1:] for slot in heard if slot[0]}
        for _, numbers in sorted(by_place.items()):
            self.refused += not self.moments.merge(Block.from_numbers(numbers))

    def _block(self, fragment: Fragment) -> Block:
        used = fragment.valid.astype(bool)
        columns = [fragment.observation[name][:-1][used].reshape(used.sum(), -1) for name, _ in self._parts]
        if self._config.normalise_rewards:
            columns.append(self._returns(fragment)[used][:, None])
        return Block.of(columns)

    def _returns(self, fragment: Fragment) -> NDArray[np.float64]:
        shaped = self._config.shaped(fragment.reward)
        returns, _ = discounted_returns(shaped, fragment.end, fragment.valid, fragment.return_before, self._discount)
        return returns

    # ---- what survives ---------------------------------------------------------------------------------------------

    def array(self) -> NDArray[np.float64] | None:
        """A copy of the statistics; None where there are none."""
        return self.moments.numbers.copy() if self.width else None

    def check(self, array: NDArray[np.float64] | None) -> None:
        """Raise CheckpointError unless `array` is of statistics like these."""
        got = None if array is None else (array.dtype.name, array.shape)
        if got != (allowed := ("float64", self.moments.numbers.shape) if self.width else None):
            raise CheckpointError(
                "statistics of weights that see observations or rewards in another way",
                got="none" if got is None else f"{got[0]} {got[1]}",
                allowed="none" if allowed is None else f"{allowed[0]} {allowed[1]}",
                fix="use the processing configuration that they were trained with",
            )

    def load(self, array: NDArray[np.float64] | None) -> None:
        """Put back what `array` gave; raises CheckpointError as `check` does, and changes nothing then."""
        self.check(array)
        if array is not None:
            self.moments.numbers[...] = array
