"""Configuration to the records that processes are made from. Objects are built where they run, from these."""

from __future__ import annotations

import os
from dataclasses import dataclass

from actors.env.make import read_specs
from actors.worker import ActorConfig
from common.errors import ConfigError, WireError
from common.fragment import FragmentLayout
from common.frames import MAX_FRAME_BYTES
from common.nets import make_actor_critic
from common.parameters import FlatParameters
from common.rng import Purpose, Role, Streams
from deploy.config import RunConfig
from learner.rank import RankConfig

ACTOR_THREADS = 1
FRAMES_OF_AN_ACTOR = 4  # fragments of one actor that may exist at once: being made, queued, trained on, being saved


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """A run ready to be started.

    Attributes:
        run: its name.
        config: the whole configuration.
        layout: of its fragments.
        network: fingerprint of its parameters' names, shapes and order.
    """

    run: str
    config: RunConfig
    layout: FragmentLayout
    network: str

    def rank(self) -> RankConfig:
        """What the learner rank is made from."""
        config = self.config
        return RankConfig(
            run=self.run,
            seed=config.seed,
            horizon_updates=config.horizon_updates,
            max_lag=config.max_lag,
            layout=self.layout,
            learner=config.learner,
            net=config.net,
            optimiser=config.optimiser,
            algorithm=config.algorithm_config,
            processing=config.processing,
        )

    def actor(self, actor: int, *, incarnation: int, lease: str, fault_report: str) -> ActorConfig:
        """What one actor is made from."""
        return ActorConfig(
            run=self.run,
            seed=self.config.seed,
            actor=actor,
            incarnation=incarnation,
            lease=lease,
            env=self.config.env,
            net=self.config.net,
            layout=self.layout,
            processing=self.config.processing,
            discount=self.config.algorithm_config.discount,
            fault_report=fault_report,
        )


def compose(run: str, config: RunConfig) -> Composition:
    """Look at the environment once and fit everything to it: what does not fit fails here, before anything starts.

    Raises:
        UserError: unknown environment, unsupported space, a network that does not fit, fragments too large, or no GPU
            here for a run that asks for one in this process.
    """
    observation, action = read_specs(config.env)
    config.processing.check(observation)
    layout = FragmentLayout(
        num_rows=config.actors.rows,
        num_lanes=config.actors.lanes,
        observation=observation,
        action=action,
        state_size=config.net.state_size,
        returns=config.processing.normalise_rewards,
    )
    check_size(layout, config)
    checker = Streams(config.seed).generator(Role.CHECKER, 0, purpose=Purpose.INITIALISE)
    model = make_actor_critic(observation, action, config.net, checker)
    model.compute_in(config.learner.precision)
    if config.engine == "inline":
        config.learner.torch_device()  # elsewhere the GPU is that of a rank's node, which need not be this one
    network = FlatParameters(model, trainable=False).manifest.fingerprint()
    return Composition(run=run, config=config, layout=layout, network=network)


def check_size(layout: FragmentLayout, config: RunConfig) -> None:
    """Refuse fragments that no frame or this machine's memory can hold, in numbers the user can act on."""
    try:
        num_bytes = layout.frame_layout().payload_bytes
    except WireError as error:
        raise ConfigError("fragments cannot be made", got=error) from None
    if num_bytes >= MAX_FRAME_BYTES:
        raise ConfigError(
            "a fragment is too large",
            got=f"{num_bytes / 2**30:.1f} GiB for {layout.num_rows} rows of {layout.num_lanes} lanes",
            allowed=f"below {MAX_FRAME_BYTES / 2**30:.0f} GiB",
            fix="use fewer actors.rows or actors.lanes",
        )
    count = num_frames(config, num_bytes)
    needed, present = count * num_bytes, memory_bytes()
    if needed > present:
        raise ConfigError(
            "the run needs more memory than this machine has",
            got=f"{needed / 2**30:.1f} GiB for {count} fragments that may exist at once",
            allowed=f"{present / 2**30:.1f} GiB",
            fix="use fewer actors.num, actors.rows or actors.lanes, or a smaller flow.most_bytes",
        )


def num_frames(config: RunConfig, frame_bytes: int) -> int:
    """Fragments that may exist at once."""
    _, most = config.actors.bounds
    flow = config.plan(frame_bytes=frame_bytes).flow
    return FRAMES_OF_AN_ACTOR * most if flow is None else flow.most_capacity + most


def memory_bytes() -> int:
    """Memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
