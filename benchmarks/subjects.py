"""What can be measured: each subject takes and gives back a lock by name, over the same servers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from aioredlock2 import Redlock
from benchmarks.floor import Floor

__all__ = ["SUBJECTS", "FencedSubject", "FloorSubject", "LibrarySubject", "Subject"]

TTL = 10


class Subject(Protocol):
    """One lock implementation, connected."""

    name: str

    async def open(self, urls: Sequence[str]) -> None:
        """Connect; returns when locks can be taken."""

    async def acquire(self, name: str) -> Any:
        """Take the lock `name`; what `release` needs."""

    async def release(self, held: Any) -> None:
        """Give it back."""

    async def close(self) -> None:
        """Disconnect."""


class FloorSubject:
    name = "floor"

    async def open(self, urls: Sequence[str]) -> None:
        self._floor = Floor(urls)
        await self._floor.connect()

    async def acquire(self, name: str) -> tuple[bytes, bytes]:
        key = b"floor:" + name.encode()
        return key, await self._floor.acquire(key)

    async def release(self, held: tuple[bytes, bytes]) -> None:
        await self._floor.release(*held)

    async def close(self) -> None:
        self._floor.close()


class LibrarySubject:
    """As users write it: a new Lock for each acquisition."""

    name = "aioredlock2"
    fenced = False

    async def open(self, urls: Sequence[str]) -> None:
        self._redlock = Redlock(urls, ttl=TTL, restart_guard=False)
        await self._redlock.__aenter__()

    async def acquire(self, name: str) -> Any:
        return await self._redlock(name, fenced=self.fenced).acquire()

    async def release(self, held: Any) -> None:
        await held.release()

    async def close(self) -> None:
        await self._redlock.aclose()


class FencedSubject(LibrarySubject):
    name = "fenced"
    fenced = True


SUBJECTS: tuple[type[Subject], ...] = (FloorSubject, LibrarySubject, FencedSubject)
"""The first one is what the others are compared with."""
