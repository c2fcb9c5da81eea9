"""Virtual hosts: each part of a cluster in a network namespace of its own, on one bridge.

A cut between two hosts loses every packet, as an unplugged cable does: no error is reported,
connections stay half open, and lost packets arrive after the cut only if they are retransmitted. A
cut gives each host a wrong hardware address for the other one, so it needs only `ip` and root.
Without root all parts are on the loopback, where nothing can be cut.
"""

import contextlib
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from tests.support.locks import alone

TESTS = "tests"
"""The host that the tests themselves are on."""
NOBODY = "02:00:00:00:00:01"
COMMAND_LIMIT_S = 20.0
ADDRESSES = "198.18.0.0/16"
"""Set aside for tests of networks (RFC 2544)."""
NETWORKS = range(256)
"""Third byte of these."""
_LOCK = Path(tempfile.gettempdir()) / "brokerhouse-tests-network.lock"
"""Sessions side by side must not find the same network free, nor sweep the same orphan."""


@dataclass(frozen=True, slots=True)
class Host:
    """`prefix`: put it before a command to run the command there."""

    name: str
    address: str
    prefix: tuple[str, ...] = ()


class Network(Protocol):
    can_cut: bool

    def host(self, name: str, beside: str | None = None) -> Host:
        """The host of that name; the first call makes it.

        `beside`: a second address of that other host, which can be cut off by itself.
        """

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        """From now on all packets between `one` and `other` are lost."""

    def heal(self) -> None:
        """Undoes all cuts."""

    def close(self) -> None: ...


class Loopback:
    """One machine; its parts differ by their ports."""

    can_cut = False

    def host(self, name: str, beside: str | None = None) -> Host:
        return Host(name, "127.0.0.1")

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        raise NotImplementedError("the loopback cannot be cut: run the tests as root")

    def heal(self) -> None:
        pass

    def close(self) -> None:
        pass


Table: TypeAlias = tuple[str, str]
"""A table of neighbours: a namespace (empty: that of the tests) and a device in it."""


class Namespaces:
    """A bridge, and a namespace with one end of a cable in it for each host."""

    can_cut = True

    def __init__(self) -> None:
        with alone(_LOCK):
            _keep_inside()
            _sweep()
            self._bridge, self._network = _make_bridge()
        self._hosts = {TESTS: Host(TESTS, f"{self._network}.1")}
        self._cuts: set[tuple[Table, str]] = set()

    def host(self, name: str, beside: str | None = None) -> Host:
        if name not in self._hosts:
            address = f"{self._network}.{len(self._hosts) + 1}"
            if beside is not None:
                namespace = self._hosts[beside].prefix[-1]
                _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", f"{namespace}i")
                prefix = self._hosts[beside].prefix
            else:
                prefix = self._make_namespace(f"{self._bridge}-{len(self._hosts)}", address)
            self._hosts[name] = Host(name, address, prefix)
        return self._hosts[name]

    def _make_namespace(self, namespace: str, address: str) -> tuple[str, ...]:
        outer, inner = namespace, f"{namespace}i"
        _ip("netns", "add", namespace)
        _ip("link", "add", outer, "type", "veth", "peer", "name", inner, "netns", namespace)
        _ip("link", "set", outer, "master", self._bridge, "up")
        _ip("-n", namespace, "link", "set", "lo", "up")
        _ip("-n", namespace, "addr", "add", f"{address}/24", "dev", inner)
        _ip("-n", namespace, "link", "set", inner, "up")
        return ("ip", "netns", "exec", namespace)

    def cut(self, one: str, other: str, *, both_ways: bool = True) -> None:
        for sender, receiver in [(one, other), (other, one)] if both_ways else [(one, other)]:
            # The addresses of one host share its table of neighbours.
            neighbour = (self._table(sender), self._hosts[receiver].address)
            _neighbour("replace", *neighbour, "lladdr", NOBODY, "nud", "permanent")
            self._cuts.add(neighbour)

    def heal(self) -> None:
        while self._cuts:
            _neighbour("del", *self._cuts.pop())

    def _table(self, name: str) -> Table:
        prefix = self._hosts[name].prefix
        return (prefix[-1], f"{prefix[-1]}i") if prefix else ("", self._bridge)

    def close(self) -> None:
        for namespace in {host.prefix[-1] for host in self._hosts.values() if host.prefix}:
            _remove_namespace(namespace)
        _ip("link", "del", self._bridge)


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """The best network that this user can make."""
    made: Network = Namespaces() if os.geteuid() == 0 else Loopback()
    try:
        yield made
    finally:
        made.close()


def _make_bridge() -> tuple[str, str]:
    """The bridge's name, which says who made it (for `_sweep`), and network, such as 198.18.7."""
    taken = _ip("-o", "-4", "addr")
    for number in NETWORKS:
        network = f"198.18.{number}"
        if f" {network}.1/" in taken:
            continue
        name = f"bh{os.getpid()}x{number:x}"
        _ip("link", "add", name, "type", "bridge")
        _ip("addr", "add", f"{network}.1/24", "dev", name)
        _ip("link", "set", name, "up")
        return name, network
    raise RuntimeError(f"all networks of {ADDRESSES} are taken")


def _keep_inside() -> None:
    """Without a bridge, nothing that is sent to these addresses leaves the machine.

    A client may live a moment longer than its network and connect again. The route stays, because
    so may the client.
    """
    _ip("route", "replace", "unreachable", ADDRESSES)


def _sweep() -> None:
    """Removes what killed test sessions have left behind."""
    for line in _ip("netns", "list").splitlines():
        if _is_orphan(line):
            _remove_namespace(line.split()[0])
    for line in _ip("-br", "link", "show", "type", "bridge").splitlines():
        if _is_orphan(line):
            _ip("link", "del", line.split()[0])


def _is_orphan(line: str) -> bool:
    match = re.match(r"bh(\d+)x", line)
    return match is not None and not Path(f"/proc/{match[1]}").exists()


def _remove_namespace(namespace: str) -> None:
    # The cable goes with it; at once only if its outer end is taken away first.
    with contextlib.suppress(RuntimeError):
        _ip("link", "del", namespace)
    _ip("netns", "del", namespace)


def _neighbour(verb: str, table: Table, address: str, *more: str) -> None:
    namespace, device = table
    inside = ("-n", namespace) if namespace else ()
    _ip(*inside, "neigh", verb, address, *more, "dev", device)


def _ip(*arguments: str) -> str:
    return _run(["ip", *arguments])


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_LIMIT_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
