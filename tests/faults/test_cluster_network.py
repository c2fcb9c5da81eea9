"""The networks that clusters of tests run in: none of their packets leaves the machine."""

import errno
import os
import socket

import pytest

from tests.support.cluster_network import network


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make networks")
def test_nobody_outside_is_asked_when_a_network_has_gone() -> None:
    with network() as made:
        address = made.host("one").address
    with socket.socket() as late:
        late.settimeout(10)
        error = late.connect_ex((address, 9092))

    assert error in (errno.EHOSTUNREACH, errno.ENETUNREACH)
