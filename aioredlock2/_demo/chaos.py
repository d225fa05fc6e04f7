"""Carries out the plan: kills, freezes, restarts, thaws, and waits for the nodes to be whole."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Protocol

from aioredlock2._demo.clock import now
from aioredlock2._demo.plan import Action, Step, cycle, guard_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aioredlock2._demo.history import Section
    from aioredlock2._demo.record import Entered
    from aioredlock2._demo.settings import Settings
    from aioredlock2.embedded import Server

__all__ = ["Chaos", "Stage"]

HUNT_S_MAX = 3.0
HUNT_LOOK_S = 0.001
SETTLE_LOOK_S = 0.05


class Stage(Protocol):
    """What the chaos needs to know and do besides the servers."""

    def holder(self) -> Entered | None:
        """Who is inside now, by the record read anew."""

    def kill_worker(self, pid: int) -> Section | None:
        """Kill that worker; the section it was inside of, if any."""

    def all_vote(self) -> bool:
        """True when every node is up and out of its guard."""
        ...

    def seconds_left(self) -> float:
        """Until the end of the show."""
        ...


class Chaos:
    """The faults, and a count of them."""

    def __init__(
        self,
        servers: Sequence[Server],
        settings: Settings,
        stage: Stage,
        tell: Callable[[str, str], None],
    ) -> None:
        self._servers = servers
        self._settings = settings
        self._stage = stage
        self._tell = tell
        self._guarded_until = 0.0
        self.dead: set[int] = set()
        """Indices of the nodes killed and not yet started again."""
        self.frozen: set[int] = set()
        """Indices of the nodes stopped and not yet thawed."""
        self.counts = {"node kills": 0, "node freezes": 0, "holder kills": 0}

    async def run(self) -> None:
        """One cycle after the other, until cancelled."""
        rng = random.Random()  # noqa: S311  (nothing secret)
        while True:
            for step in cycle(len(self._servers), self._settings.ttl, rng):
                await asyncio.sleep(step.pause)
                await self._do(step)

    async def _do(self, step: Step) -> None:
        if step.node is not None:
            await self._do_to_node(step.action, step.node)
        elif step.action is Action.KILL_HOLDER:
            # Nobody would see who comes next.
            if self._stage.seconds_left() > self._settings.ttl:
                await self._kill_a_holder()
        else:
            await self._settle()

    async def _do_to_node(self, action: Action, index: int) -> None:
        server = self._servers[index]
        if action is Action.KILL_NODE:
            self.dead.add(index)
            self.counts["node kills"] += 1
            self._tell(f"killed node {index + 1}", "red")
            await asyncio.to_thread(server.kill)
        elif action is Action.FREEZE_NODE:
            self.frozen.add(index)
            self.counts["node freezes"] += 1
            self._tell(f"froze node {index + 1}", "bright_cyan")
            await asyncio.to_thread(server.freeze)
        elif action is Action.RESTART_NODE:
            await asyncio.to_thread(server.restart)
            self._guarded_until = now() + guard_seconds(self._settings.ttl)
            self.dead.discard(index)
            self._tell(f"restarted node {index + 1}: empty, so it must not vote yet", "yellow")
        else:
            server.thaw()
            self.frozen.discard(index)
            self._tell(f"thawed node {index + 1}", "green")

    async def _kill_a_holder(self) -> None:
        """Kill a worker that is inside, for certain.

        Between the look and the kill it may have left: then another one is tried.
        """
        deadline = now() + HUNT_S_MAX
        while now() < deadline:
            holder = self._stage.holder()
            if holder is None:
                await asyncio.sleep(HUNT_LOOK_S)
                continue
            if self._stage.kill_worker(holder.pid) is not None:
                self.counts["holder kills"] += 1
                self._tell(f"killed worker {holder.worker} while it held the lock", "magenta")
                return
            self._tell(f"killed worker {holder.worker}, but it had just left: once more", "dim")
            await asyncio.sleep(self._settings.ttl)

    async def _settle(self) -> None:
        while now() < self._guarded_until or not self._stage.all_vote():
            await asyncio.sleep(SETTLE_LOOK_S)
        self._tell("all nodes vote", "green")
