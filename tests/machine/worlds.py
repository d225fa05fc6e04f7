"""Two worlds for the machine: nodes in memory and virtual time, or a real server behind relays."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Coroutine
from typing import Any

from aioredlock2 import Redlock
from aioredlock2._core.fence import seed
from aioredlock2._node import Request, Verb
from aioredlock2.embedded import Server
from tests.machine.operations import CLIENTS
from tests.support.model_node import ModelNode, ModelServer, Way, client
from tests.support.relay import Relays
from tests.support.scene import FOREIGN, KEY
from tests.support.view import View
from tests.support.virtual import VirtualLoop, VirtualRuntime, settle

__all__ = ["MemoryWorld", "ServerWorld"]

NODES = 3


def _foreign(verb: Verb, wall_clock: float) -> Request:
    """What a client that is not ours asks, in a short moment."""
    request = Request(verb, KEY, FOREIGN, 1)
    request.fence = seed(wall_clock)
    return request


class MemoryWorld:
    """Three servers in memory, a connection to each of them per client."""

    ttls: tuple[float, ...] = (2.0, 0.5, 10.0)
    waits: tuple[float, ...] = (0.0, 0.5, 3.0)
    pauses: tuple[float, ...] = (0.001, 0.01, 0.1, 0.7, 3.0)
    punctual = True

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        self._runner = asyncio.Runner(loop_factory=VirtualLoop)
        loop = self._runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        self._loop = loop
        loop.set_exception_handler(lambda _, context: self.heard.append(context))
        self.servers = [ModelServer(loop.boottime) for _ in range(NODES)]
        self.nodes = [
            [ModelNode(f"n{n}", server) for n, server in enumerate(self.servers)] for _ in CLIENTS
        ]
        self.clients: list[Redlock] = []
        self.run(self._make())

    async def _make(self) -> None:
        for number, nodes in enumerate(self.nodes):
            self.clients.append(client(nodes, VirtualRuntime(self._loop, number)))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(main)

    def clock(self) -> float:
        return self._loop.boottime()

    def harm(self, how: str, number: int, node: int) -> None:  # noqa: C901, PLR0912 - it is a table
        mine, server = self.nodes[number][node % NODES], self.servers[node % NODES]
        match how:
            case "freeze":
                server.freeze()
            case "thaw":
                server.thaw()
            case "cut":
                mine.cut()
            case "cut late":
                mine.cut(arrives=True)
            case "restore":
                mine.way = Way()
                mine.restore()
            case "slow":
                mine.way = Way((0.0, 0.001, 0.02)[node % 3], (0.001, 0.02, 0.03)[node // 3])
            case "error":
                mine.way = Way(fault="LOADING")
            case "others":
                for verb in (Verb.GRANT_FENCED, Verb.REVOKE):
                    server.act_on(_foreign(verb, self.clients[0]._runtime.wall_clock()))
            case "wipe":
                server.wipe()
            case "overwrite":
                server.put(KEY, FOREIGN, 0.5)
            case "block":
                self._loop.block((0.01, 0.5, 2.5)[node % 3])
            case "suspend":
                self._loop.suspend((0.01, 0.5, 2.5)[node % 3])

    def end(self) -> set[bytes]:
        async def end() -> None:
            for server in self.servers:
                server.thaw()
            for node in [node for nodes in self.nodes for node in nodes]:
                node.way = Way()
                node.restore()
            await settle()
            for redlock in self.clients:
                await redlock.aclose()
            await asyncio.sleep(max(self.ttls) + 1)

        self.run(end())
        self._runner.close()
        return {KEY for server in self.servers if server.get(KEY) is not None}


class ServerWorld:
    """One real server, a relay to it per client."""

    ttls: tuple[float, ...] = (0.3, 0.2, 0.5)
    waits: tuple[float, ...] = (0.0, 0.05, 0.3)
    pauses: tuple[float, ...] = (0.0, 0.001, 0.01, 0.1, 0.25)
    punctual = False

    def __init__(self, server: Server) -> None:
        self.heard: list[dict[str, Any]] = []
        self._server = server
        self._view = View(server)
        self._view.execute("FLUSHALL")
        self._relays = Relays([server] * len(CLIENTS))
        self._runner = asyncio.Runner()
        self._runner.get_loop().set_exception_handler(lambda _, context: self.heard.append(context))
        self.clients = [
            Redlock([url], restart_guard=False, node_timeout=0.05) for url in self._relays.urls
        ]

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(main)

    def clock(self) -> float:
        return self.clients[0]._runtime.clock()

    def harm(self, how: str, number: int, node: int) -> None:
        relay = self._relays[number]
        match how:
            case "freeze":
                relay.to_server.hold()
            case "thaw" | "restore":
                relay.release()
                relay.to_client.delay_s = 0
            case "cut":
                relay.cut()
            case "cut late":
                relay.to_client.hold()
                relay.cut()
                relay.to_client.release()
            case "slow":
                relay.to_client.delay_s = (0.001, 0.01, 0.06)[node % 3]
            case "wipe":
                self._view.execute("FLUSHALL")
            case "overwrite":
                self._view.execute("SET", KEY, FOREIGN, "PX", 100)
            case "block":
                time.sleep((0.001, 0.01, 0.2)[node % 3])

    def end(self) -> set[bytes]:
        async def end() -> None:
            for relay in self._relays:
                relay.release()
                relay.to_client.delay_s = 0
            for redlock in self.clients:
                await redlock.aclose()
            deadline = self.clock() + max(self.ttls) + 1
            while self._view.get(KEY) is not None and self.clock() < deadline:
                await asyncio.sleep(0.005)

        with contextlib.ExitStack() as stack:
            stack.callback(self._view.close)
            stack.callback(self._relays.stop)
            stack.callback(self._runner.close)
            self.run(end())
            return {KEY} if self._view.get(KEY) is not None else set()
