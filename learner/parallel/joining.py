"""How a rank comes into a group: meet, agree on what everybody is, only then connect for collectives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from common.clock import Clock
from common.parameters import FlatParameters
from learner.parallel.agreement import check_alike, describe
from learner.parallel.config import SyncConfig
from learner.parallel.faults import Tamper
from learner.parallel.group import Group, OneRank
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.parallel.verified import VerifiedGroup
from learner.reports import Formation


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """What a rank brings to a group.

    Attributes:
        rank: who it is.
        description: plain values that all ranks must have alike: configuration, parameters, state.
        machine: plain values that decide the last bits of a gradient; they may differ.
    """

    rank: int
    description: dict[str, Any]
    machine: dict[str, Any]


def join_group(
    formation: Formation,
    member: Membership,
    meeting: Meeting | None,
    parameters: FlatParameters,
    config: SyncConfig,
    clock: Clock,
    tamper: Tamper,
) -> Group:
    """The group of `formation`, once every rank of it has come and all are alike.

    Raises:
        SyncError: a rank did not come within the deadline, or could not be reached.
        RunFailedError: the ranks are not alike; no collective was begun.
    """
    if len(formation.ranks) == 1:
        return OneRank(member.rank, parameters, tamper)
    clock.sleep(formation.delay_s)
    place = formation.ranks.index(member.rank)
    blackboard = Blackboard(formation, place, meeting, deadline_s=config.collective_s)
    check_alike(formation.ranks, blackboard.exchange("description", describe(member.description)))
    machines = blackboard.exchange("machine", describe(member.machine))
    device = parameters.vector.device
    group = ProcessGroup(blackboard, formation, place, device, deadline_s=config.collective_s)
    return VerifiedGroup(
        group,
        parameters,
        clock,
        tamper,
        bucket_elements=config.bucket_elements,
        compares=len(set(machines)) == 1,
    )


def machine_facts(device: torch.device) -> dict[str, Any]:
    """What decides the last bits of a gradient on this machine."""
    gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return {
        "torch": str(torch.__version__),
        "capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "gpu": gpu,
    }
