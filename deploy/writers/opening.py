"""Which writers a run has, and how each begins. What a package needs is looked at only if the configuration asks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, assert_never

from common.errors import ConfigError
from common.runs import RunRecord
from deploy.config_sections import WritersConfig
from deploy.resources import Session
from deploy.writers import tensorboard_writer, wandb_writer
from deploy.writers.feed import Feed
from deploy.writers.outbox import Outbox
from deploy.writers.tensorboard_writer import TensorBoardWriter
from deploy.writers.wandb_writer import WandbWriter
from deploy.writers.writer import Writer

Target = Literal["tensorboard", "wandb"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A writer that comes with truestep.

    Attributes:
        target: its key in the configuration, and what `truestep export --to` takes.
        name: for people.
        require: raises ConfigError where it cannot begin: a package that is missing, no login.
    """

    target: Target
    name: str
    require: Callable[[], None]


TENSORBOARD = Known(target="tensorboard", name=tensorboard_writer.NAME, require=tensorboard_writer.require)
WANDB = Known(target="wandb", name=wandb_writer.NAME, require=wandb_writer.require)


def asked_for(config: WritersConfig) -> list[Known]:
    """The writers that a configuration asks for."""
    return [*([TENSORBOARD] if config.tensorboard else []), *([WANDB] if config.wandb else [])]


def require_writers(config: WritersConfig) -> None:
    """Raises ConfigError where a writer that is asked for cannot begin."""
    for known in asked_for(config):
        known.require()


def feed_of(session: Session, record: RunRecord, config: WritersConfig, out: Path) -> Feed:
    """The feed of a run that is about to be driven; nothing is opened yet.

    A writer that cannot begin is told, and the run goes on without it: this may be a resume on a machine that lacks the
    package, and nothing that only looks on keeps a run from going on. `train` asks `require_writers` first.

    Args:
        session: of the driving; its `writers` come on top.
        record: of the run.
        config: which writers it has.
        out: output directory.
    """
    tell = session.display.tell
    outboxes = [Outbox(known.name, _opener(known, record, config, out), tell) for known in _usable(config, tell)]
    for number, writer in enumerate(session.writers, start=1):
        outboxes.append(Outbox(f"{type(writer).__name__} ({number})", partial(_itself, writer), tell))
    if outboxes:
        tell(f"writers      {', '.join(outbox.name for outbox in outboxes)}")
    target = next((known.target for known in asked_for(config)), TENSORBOARD.target)
    remedy = f"the registry has them all: truestep export {record.run} --to {target} --out {out}"
    return Feed(outboxes, session.clock, tell, remedy=remedy)


def unique_id(record: RunRecord) -> str:
    """Of the run among all that anybody makes: names are given again in other output directories.

    Letters, digits, '.', '_' and '-'; the same over resumes.
    """
    made = f"{record.out}\n{record.created_wall}"
    return f"{record.run}-{hashlib.sha256(made.encode()).hexdigest()[:8]}"


def config_text(record: RunRecord) -> str:
    """A run's configuration and origin in Markdown."""
    lines = json.dumps(record.config, indent=2, sort_keys=True).splitlines()
    return "\n".join([f"run {record.run}, made {record.created_wall}", "", *(f"    {line}" for line in lines)])


def _usable(config: WritersConfig, tell: Callable[[str], None]) -> Iterator[Known]:
    for known in asked_for(config):
        try:
            known.require()
        except ConfigError as error:
            tell(f"WARNING: the run goes on without {known.name}: {error}")
        else:
            yield known


def _opener(known: Known, record: RunRecord, config: WritersConfig, out: Path) -> Callable[[], Writer]:
    directory = out / record.run
    match known.target:
        case "tensorboard":
            return partial(TensorBoardWriter, directory / "tensorboard", config_text(record))
        case "wandb":
            return partial(
                WandbWriter.begin,
                project=config.wandb_project,
                unique=unique_id(record),
                name=record.run,
                directory=directory,
                config=record.config,
            )
        case other:
            assert_never(other)


def _itself(writer: Writer) -> Writer:
    return writer
