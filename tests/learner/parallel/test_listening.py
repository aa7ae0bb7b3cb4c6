"""Where the ranks of a group can be reached: on the address at which they meet, and nowhere else."""

from __future__ import annotations

import gc
import os
import socket

import pytest

from common.errors import SyncError
from common.listeners import Listener, listeners
from common.ports import own_address
from learner.parallel.process_group import Blackboard, Meeting, ProcessGroup
from learner.reports import Formation
from tests.learner.parallel.test_process_group import CPU, LONG_S, Lab


def listening_now() -> set[Listener]:
    gc.collect()  # groups of other tests close their sockets only then
    return set(listeners([os.getpid()]))


def test_a_meeting_and_its_group_listen_on_the_loopback_only() -> None:
    """torch's own store would listen on every address of the machine, and neither it nor Gloo knows a token."""
    before = listening_now()
    lab = Lab()
    groups = lab.each(lab.join)
    new = listening_now() - before
    assert all(isinstance(group, ProcessGroup) for group in groups)
    assert len(new) >= 1 + len(groups)  # the store's socket, and one of each rank's Gloo
    assert {listener.address for listener in new} == {"127.0.0.1"}


@pytest.mark.skipif(own_address() in ("127.0.0.1", socket.gethostname()), reason="a machine without a network")
def test_ranks_of_several_machines_listen_on_the_address_that_they_meet_by() -> None:
    """The own address of the node, whatever the name of the host means."""
    before = listening_now()
    lab = Lab()
    lab.meeting = Meeting(own_address(), deadline_s=LONG_S)
    lab.each(lab.join)
    assert {listener.address for listener in listening_now() - before} == {own_address()}


def test_a_meeting_is_over_when_nobody_holds_it() -> None:
    """The socket goes with the store: formation after formation, none is left."""
    before = listening_now()
    for _ in range(3):
        assert Meeting("127.0.0.1", deadline_s=LONG_S).address.startswith("127.0.0.1:")
    assert listening_now() == before


def test_an_interface_that_the_user_names_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """GLOO_SOCKET_IFNAME, as torch documents it: one that does not exist is an error, not a silent default."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nosuchif0")
    meeting = Meeting("127.0.0.1", deadline_s=LONG_S)
    formation = Formation(number=1, ranks=(0,), address=meeting.address)

    with pytest.raises(SyncError, match="could not form"):
        ProcessGroup(Blackboard(formation, 0, meeting, deadline_s=LONG_S), formation, 0, CPU, deadline_s=LONG_S)
