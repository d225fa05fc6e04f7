"""Looks at the nodes with a client of its own, as an operator would."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from aioredlock2 import RedlockError
from aioredlock2._demo.scene import Ballot, Light, NodeView
from aioredlock2._demo.settings import RESOURCE

if TYPE_CHECKING:
    from collections.abc import Collection

    from aioredlock2 import Inspection, Redlock

__all__ = ["Monitor"]

PERIOD_S = 0.1


class Monitor:
    """The nodes' states, and what each of them says about the holder."""

    def __init__(self, redlock: Redlock) -> None:
        self._redlock = redlock
        self._seen: Inspection | None = None

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(PERIOD_S)

    async def look(self) -> None:
        """Look once."""
        seen = None
        with contextlib.suppress(RedlockError):  # too few nodes: nothing to be seen
            seen = await self._redlock.inspect(RESOURCE)
        self._seen = seen

    @property
    def all_vote(self) -> bool:
        """True when every node is up and out of its restart guard."""
        return all(node.state.value == "up" for node in self._redlock.nodes)

    @property
    def digest(self) -> str:
        """Short name of the token that holds a quorum; empty if none does."""
        return (self._seen is not None and self._seen.holder) or ""

    @property
    def remaining(self) -> float:
        """Seconds until its keys end."""
        return (self._seen is not None and self._seen.remaining) or 0.0

    def nodes(self, dead: Collection[int], frozen: Collection[int]) -> list[NodeView]:
        """Every node; *dead* and *frozen* are the indices of those the demo did it to."""
        views: list[NodeView] = []
        for index, status in enumerate(self._redlock.nodes):
            hurt = Light.DEAD if index in dead else Light.FROZEN if index in frozen else None
            view = NodeView(
                number=index + 1,
                address=status.name,
                server=status.server,
                light=hurt or Light(status.state.value),
                # What it said before it was hurt is no news any more.
                ballot=Ballot.SILENT if hurt else self._ballot(index),
                guard_left=status.guard_left,
            )
            views.append(view)
        return views

    def _ballot(self, index: int) -> Ballot:
        if self._seen is None:
            return Ballot.SILENT
        sighting = self._seen.nodes[index]
        if sighting.cause:
            return Ballot.SILENT
        if sighting.holder is None:
            return Ballot.NONE
        return Ballot.GRANTED if sighting.holder == self._seen.holder else Ballot.OTHER
