"""Ranks that can add and gather, with a deadline on every wait. The only file that talks to torch.distributed.

    Meeting (at place 0, any free port) ◄── TCP ── all ranks ──► agree on what they are ──► ProcessGroup

A group is an object, not the process's default group: it is thrown away after a failure and made anew within
milliseconds, and several ranks can live in the threads of one process.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as torch_distributed
from numpy.typing import NDArray
from torch import Tensor

from common.clock import Deadline, MonotonicClock, as_timedelta
from common.errors import SyncError
from common.ports import address_of, address_towards
from learner.reports import Formation

ASK_ONCE = "timeout:1 attempts:1"  # the store looks up the name of whoever connects: 5 s if the resolver is silent
MIN_STORE_S = 1.0
ANY_PORT = 9  # whichever: nothing is sent there
GLOO_THREADS = 2  # as torch itself has for one device
BACKLOG = 2048  # of the store's own sockets
MIN_WAIT_S = 0.01  # a store takes 0 for ever
dist: Any = torch_distributed  # stores and groups are public, but not in its stubs


class Meeting:
    """Where the ranks of one formation find one another: a key-value store on a free port of one address, `host`.

    The store knows no token. Left to itself it listens on every address of the machine; so the socket is ours.
    """

    def __init__(self, host: str, *, deadline_s: float) -> None:
        os.environ.setdefault("RES_OPTIONS", ASK_ONCE)
        self.host = host
        limit = as_timedelta(max(MIN_STORE_S, deadline_s))
        family = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((host, 0), family=family, backlog=BACKLOG) as listening:
            port = listening.getsockname()[1]
            self.store = dist.TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                timeout=limit,
                master_listen_fd=os.dup(listening.fileno()),  # the store's, which closes it
            )

    @property
    def address(self) -> str:
        """host:port."""
        return address_of(self.host, self.store.port)


class Blackboard:
    """What the ranks of a formation tell one another before they are a group."""

    def __init__(self, formation: Formation, place: int, meeting: Meeting | None, *, deadline_s: float) -> None:
        """Raises SyncError if nobody answers at the meeting place."""
        self._who = f"learner rank {formation.ranks[place]}"
        self._formation = formation
        self._place = place
        self._deadline_s = deadline_s
        self._deadline = Deadline(MonotonicClock(), deadline_s)
        self._meeting_host = meeting.host if meeting is not None else formation.address.rpartition(":")[0].strip("[]")
        with self._failing("reach the meeting place"):
            store = meeting.store if meeting is not None else self._connect(formation.address)
            self.store = dist.PrefixStore(f"formation-{formation.number}", store)

    def _connect(self, address: str) -> Any:
        port = int(address.rpartition(":")[2])
        return dist.TCPStore(self._meeting_host, port, is_master=False, timeout=self._left())

    @property
    def own_address(self) -> str:
        """Of this machine as the meeting place sees it: a loopback one where all ranks are on one machine."""
        return address_towards(self._meeting_host, ANY_PORT) or ""

    def exchange(self, topic: str, words: bytes) -> list[bytes]:
        """Say `words`; returns what each rank said, by place. Raises SyncError naming a rank that says nothing."""
        with self._failing("speak at the meeting place"):
            self.store.set(f"{topic}-{self._place}", words)
        heard = []
        for place, rank in enumerate(self._formation.ranks):
            with self._failing(f"hear of learner rank {rank}"):
                self.store.wait([f"{topic}-{place}"], self._left())
                heard.append(bytes(self.store.get(f"{topic}-{place}")))
        return heard

    def _left(self) -> Any:
        """Of the time for the whole meeting, however many ranks there are to hear."""
        return as_timedelta(max(MIN_WAIT_S, self._deadline.remaining_s()))

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # torch's DistError is one
            raise SyncError(
                f"{self._who} did not {what} in formation {self._formation.number}",
                got=_first_line(error),
                allowed=f"within {self._deadline_s:g} s",
            ) from None


class ProcessGroup:
    """Collectives of the ranks of one formation."""

    def __init__(
        self, blackboard: Blackboard, formation: Formation, place: int, device: torch.device, *, deadline_s: float
    ) -> None:
        self.ranks = formation.ranks
        self.place = place
        self._device = device
        self._deadline_s = deadline_s
        limit = as_timedelta(deadline_s)
        with self._failing("form"):
            self._group = _make(blackboard, place, len(formation.ranks), device, limit)

    def begin_sum(self, values: Tensor) -> Any:
        """Start to replace `values` by their sum over ranks; `finish` the handle before using them."""
        with self._failing("begin a reduce"):
            return self._group.allreduce([values])

    def finish(self, handle: Any) -> None:
        """Wait for a sum, at most as long as the group was made to wait. Raises SyncError."""
        with self._failing("reduce"):
            handle.wait()

    def gather(self, words: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """`words` [k] of every rank: [num_ranks, k]. All must bring equally many. Raises SyncError."""
        own = torch.from_numpy(words.view(np.uint8).copy()).to(self._device)
        everyone = [torch.empty_like(own) for _ in self.ranks]
        with self._failing("gather"):
            self._group.allgather([everyone], [own]).wait()
        return np.stack([each.cpu().numpy().view(np.uint64) for each in everyone])

    def abort(self) -> None:
        """Leave: whoever still waits for this rank fails at once. Afterwards there is no group.

        Gloo closes its connections only when nothing refers to them any more, be it a handle; what is still under way
        in them is waited for, at most until its deadline.
        """
        if self._group is not None:
            self._group.abort()
        self._group = None

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise SyncError(
                f"learner rank {self.ranks[self.place]} could not {what} with ranks {list(self.ranks)}",
                got=_first_line(error),
                allowed=f"within {self._deadline_s:g} s",
            ) from None


def _make(blackboard: Blackboard, place: int, num_ranks: int, device: torch.device, limit: Any) -> Any:
    store = blackboard.store
    if device.type != "cuda":
        return dist.ProcessGroupGloo(store, place, num_ranks, _gloo_options(blackboard.own_address, limit))
    os.environ.setdefault(
        "TORCH_NCCL_BLOCKING_WAIT", "1"
    )  # a wait raises at its deadline instead of ending the process
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = limit
    torch.cuda.set_device(device)
    return dist.ProcessGroupNCCL(store, place, num_ranks, options)


def _gloo_options(own_address: str, limit: Any) -> Any:
    """Gloo listens where the ranks met, unless the user names an interface.

    Left to itself it takes whatever address the host's name has, which on many machines is a loopback one that no
    other machine reaches, and on others is one that more than the ranks can reach.
    """
    interface = os.environ.get("GLOO_SOCKET_IFNAME", "")
    named = {"interface": interface} if interface else {"hostname": own_address}
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(**named)]
    options._timeout = limit
    options._threads = GLOO_THREADS
    return options


def _first_line(error: BaseException) -> str:
    text = str(error).partition("\n")[0].partition(". This is typically caused")[0]
    return text.rpartition("] ")[2] if "third_party" in text else text
