"""Connections: in order and reliable while they last, and at the mercy of what lies between.

A `Wire` is one TCP connection; its client's side is a transport that the library's own `Link` sits on.
A `Path` is what lies between one process and one server: delay, and a block for each direction. What is
on its way when a connection breaks is lost, arrives, or arrives late: long after the next connection has
been made, perhaps.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import hiredis

from aioredlock2._redis.handshake import DialError
from aioredlock2._redis.transport import Link
from tests.simulation.history import Command, History, Wired
from tests.simulation.host import Host
from tests.simulation.process import Process
from tests.simulation.server import Server
from tests.simulation.words import lock_command
from tests.simulation.world import World

__all__ = ["Network", "Path", "SimDialer", "Wire"]

REFUSED = "Connection refused"


@dataclass
class Path:
    """What lies between a process and a server."""

    delay: float
    """Seconds one way, at least."""
    jitter: float
    """Up to so many seconds more, drawn for each message."""
    extra: float = 0.0
    blocked_there: bool = False
    blocked_back: bool = False
    held: list[tuple[bool, Callable[[], None]]] = field(default_factory=list)
    """What was sent into a block, by direction: it arrives when that is over."""

    def takes(self, rng: random.Random) -> float:
        """Seconds for the next message."""
        return self.delay + self.extra + rng.random() * self.jitter

    def heal(self) -> None:
        """Nothing stands in the way any more."""
        self.blocked_there = self.blocked_back = False
        self.extra = 0.0
        held, self.held = self.held, []
        for _, send in held:
            send()


class Network:
    """All paths and wires."""

    def __init__(self, world: World, history: History, rng: random.Random) -> None:
        self.world = world
        self.history = history
        self.rng = rng
        self.paths: dict[tuple[str, str], Path] = {}
        self.hosts: dict[str, Host] = {}
        self.wires: list[Wire] = []
        self.chunked = 0.0
        """Share of replies that come in two pieces."""
        self.lost = 0.0
        """Share of messages that vanish, and all behind them in the same direction."""
        self.late = (1.0, 0.0, 0.0)
        """Weights of what happens to bytes under way at an abort: dropped, in time, late."""
        self.late_s = 1.0
        self.numbers = itertools.count(1)

    def between(self, process: Process, host: Host) -> Path:
        """The path from `process` to a server."""
        return self.paths[process.name, host.server.name]

    def host(self, server: Server) -> Host:
        """The machine of a new server."""
        host = self.hosts[server.name] = Host(server, lambda host: self.wires_of(host=host))
        return host

    def wires_of(self, process: Process | None = None, host: Host | None = None) -> list[Wire]:
        """The wires that stand, of these two if they are given."""
        self.wires = [wire for wire in self.wires if wire.is_open]
        return [
            wire
            for wire in self.wires
            if process in (None, wire.process) and host in (None, wire.host)
        ]

    def calm(self) -> None:
        """From now on nothing is lost, blocked or slow."""
        self.chunked = self.lost = 0.0
        for path in self.paths.values():
            path.heal()
        for wire in self.wires_of():
            if wire.is_stuck:
                wire.reset("the path changed")


class Wire(asyncio.WriteTransport):
    """One connection, and the transport of its client's side."""

    def __init__(self, network: Network, process: Process, host: Host) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.host = host
        self.path = network.between(process, host)
        self.number = next(network.numbers)
        self.record = Wired(self.number, process.name, host.server.name, process.now())
        self._incarnation = host.incarnation
        self._protocol: Any = None
        self._reader = hiredis.Reader()
        self.is_open = True
        self._linger = False
        self._dropped = False
        self._late_by = 0.0
        self._there_at = self._back_at = 0.0
        self._stuck_there = self._stuck_back = False
        network.wires.append(self)
        network.history.wires[self.number] = self.record

    @property
    def is_stuck(self) -> bool:
        """True if a message was lost: nothing behind it ever arrives."""
        return self._stuck_there or self._stuck_back

    # The client's side: what `Link` asks of a transport.

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self if name == "socket" else default

    family = socket.AF_INET

    def setsockopt(self, *_option: object) -> None:
        """As the socket: the only option that is ever set is to linger for 0 seconds."""
        self._linger = True

    def is_closing(self) -> bool:
        return not self.is_open

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.is_open or not self.process.may_write():
            return
        self._reader.feed(bytes(data))
        commands: list[list[bytes]] = []
        while (words := self._reader.gets()) is not False:
            commands.append(words)
        self._note(commands)
        self._send_there(commands)

    def abort(self) -> None:
        if not self.is_open:
            return
        self._hang_up()
        if not self._linger:
            return
        fate = self.network.rng.choices(("dropped", "in time", "late"), self.network.late)[0]
        self._dropped = fate == "dropped"
        if fate == "late":
            self._late_by = self.network.rng.random() * self.network.late_s

    close = abort

    def _hang_up(self) -> None:
        self.is_open = False
        self.record.down_at = min(self.record.down_at, self.process.now())

    def _note(self, commands: list[list[bytes]]) -> None:
        at = self.process.now()
        for words in commands:
            said = lock_command(words)
            if said is not None:
                self.record.up_at = min(self.record.up_at, at)
                self.process.has_sent(said[0])
                self.network.history.commands.append(
                    Command(at, self.process.name, self.host.server.name, self.number, *said)
                )

    # On the way.

    def _send_there(self, commands: list[list[bytes]]) -> None:
        if self.network.rng.random() < self.network.lost:
            self._stuck_there = True
        if self._stuck_there:
            return
        if self.path.blocked_there:
            self.path.held.append((True, lambda: self._send_there(commands)))
            return
        at = self.process.now() + self.path.takes(self.network.rng)
        self._there_at = max(at, self._there_at)
        self.network.world.at(self._there_at, self._arrive_there, commands, 0.0)

    def _arrive_there(self, commands: list[list[bytes]], waited: float) -> None:
        if self._dropped:
            return
        if waited < self._late_by:
            self.network.world.later(
                self._late_by - waited, self._arrive_there, commands, self._late_by
            )
            return
        if self._incarnation != self.host.incarnation:
            if self.host.up:
                self.reset("connection reset by peer")
            return
        self.host.when_awake(lambda: self._execute(commands))

    def _execute(self, commands: list[list[bytes]]) -> None:
        if self._incarnation == self.host.incarnation:
            self._send_back(self.host.server.execute(commands, self.process.name))

    def _send_back(self, data: bytes) -> None:
        rng = self.network.rng
        if rng.random() < self.network.lost:
            self._stuck_back = True
        if self._stuck_back or not self.is_open:
            return
        if self.path.blocked_back:
            self.path.held.append((False, lambda: self._send_back(data)))
            return
        parts = [data]
        if rng.random() < self.network.chunked:
            cut = rng.randrange(len(data) + 1)
            parts = [data[:cut], data[cut:]]
        for part in parts:
            at = self.network.world.now + self.host.service_s + self.path.takes(rng)
            self._back_at = max(at, self._back_at)
            self.network.world.at(self._back_at, self._arrive_back, part)

    def _arrive_back(self, data: bytes) -> None:
        if self.is_open and self.process.died_at is None:
            self.process.loop.arrive(self._read, data)

    def _read(self, data: bytes) -> None:
        if self.is_open:
            self._protocol.data_received(data)

    def lose_from_now(self, *, there: bool) -> None:
        """Nothing that is sent from now on arrives, in one direction; nobody is told."""
        self._stuck_there |= there
        self._stuck_back |= not there

    # How it ends, but for the client's own abort.

    def reset(self, why: str) -> None:
        """Something between, or the server, ends it: the client is told after the usual delay."""
        if self.is_open:
            self._dropped = self.network.rng.random() < 0.5
            self.network.world.later(self.path.takes(self.network.rng), self._arrive_reset, why)

    def _arrive_reset(self, why: str) -> None:
        if self.is_open and self.process.died_at is None:
            self.process.loop.arrive(self._lose, why)

    def _lose(self, why: str) -> None:
        if self.is_open:
            self._hang_up()
            self._protocol.connection_lost(ConnectionResetError(why))


class SimDialer:
    """In the place of the one that uses redis-py: a process' way to one server."""

    def __init__(self, network: Network, process: Process, host: Host) -> None:
        self.name = host.server.name
        self.address = (host.server.name, 6379)
        self._network = network
        self._process = process
        self._host = host

    async def dial(self) -> Link:
        """A connection that stands, or DialError; never, if nothing comes back."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Wire] = loop.create_future()
        path = self._network.between(self._process, self._host)
        if not (path.blocked_there or path.blocked_back):
            there = path.takes(self._network.rng) + path.takes(self._network.rng)
            self._network.world.at(self._process.now() + there, self._arrive, future)
        try:
            return Link(await future, loop)
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                future.result().abort()
            raise

    def _arrive(self, future: asyncio.Future[Wire]) -> None:
        if self._process.died_at is None:
            self._process.loop.arrive(self._connect, future)

    def _connect(self, future: asyncio.Future[Wire]) -> None:
        if future.done():
            return
        if self._host.up:
            future.set_result(Wire(self._network, self._process, self._host))
        else:
            future.set_exception(DialError(REFUSED))
