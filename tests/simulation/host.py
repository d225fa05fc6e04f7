"""Where a server runs: it can be stopped, and it can be down."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from tests.simulation.server import Server

__all__ = ["Host"]


class Breakable(Protocol):
    """A connection, seen from here."""

    def reset(self, why: str) -> None:
        """It ends."""


class Host:
    """One server's machine; `wires` tells the connections to it."""

    def __init__(self, server: Server, wires: Callable[[Host], Iterable[Breakable]]) -> None:
        self.server = server
        self._wires = wires
        self.up = True
        self.frozen = False
        self.incarnation = 0
        self.service_s = 0.0
        """Seconds a command takes."""
        self._backlog: list[Callable[[], None]] = []

    def freeze(self) -> None:
        """The process is stopped: what arrives waits."""
        self.frozen = True

    def thaw(self) -> None:
        """It goes on with what has arrived, whether or not anybody waits for it still."""
        self.frozen = False
        backlog, self._backlog = self._backlog, []
        for action in backlog:
            action()

    def when_awake(self, action: Callable[[], None]) -> None:
        """Do it now, or when it goes on."""
        if self.frozen:
            self._backlog.append(action)
        else:
            action()

    def crash(self, *, forgets: bool, silent: bool = False) -> None:
        """The process ends; `silent`: with the whole machine, so that nobody is told."""
        self.up = False
        self.frozen = False
        self._backlog.clear()
        self.incarnation += 1
        if forgets:
            self.server.forget()
        if not silent:
            for wire in self._wires(self):
                wire.reset("the server crashed")

    def restart(self) -> None:
        """It is there again."""
        if not self.up:
            self.up = True
            self.server.start()
