"""Running servers shared by all tests: every test gets them thawed, empty and unchanged."""

from __future__ import annotations

from typing import Any

import hiredis

from aioredlock2.embedded import Server, Servers
from tests.support import servers
from tests.support.servers import Kind
from tests.support.stopping import Stopping
from tests.support.view import View, Word

__all__ = ["ServerPool"]

ANSWER_S_MAX = 0.25
"""A server that keeps silent for longer (paused, in a script) is started anew."""

_RESET: list[tuple[Word, ...]] = [
    ("CLIENT", "UNPAUSE"),
    ("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"),
    ("FLUSHALL",),
    ("SCRIPT", "FLUSH"),
    ("ROLE",),
    ("ACL", "LIST"),
    ("CONFIG", "GET", "*"),
    ("CONFIG", "RESETSTAT"),
]


class ServerPool(Stopping):
    """Servers of each kind, started when first asked for and kept till the end of the run."""

    def __init__(self) -> None:
        self._groups: dict[Kind, list[Servers]] = {}
        self._views: dict[Server, View] = {}
        self._states: dict[Server, list[Any]] = {}

    def take(self, kind: Kind, nodes: int) -> list[Server]:
        """*nodes* servers as good as new, except that their uptime goes on."""
        groups = self._groups.setdefault(kind, [])
        missing = nodes - sum(len(group) for group in groups)
        if missing > 0:
            groups.append(servers.start(kind, missing))
        taken = [server for group in groups for server in group][:nodes]
        for server in taken:
            self._reset(server)
        return taken

    def stop(self) -> None:
        """End all servers."""
        for view in self._views.values():
            view.close()
        for groups in self._groups.values():
            for group in groups:
                group.stop()

    def _reset(self, server: Server) -> None:
        server.thaw()
        if not (server.is_running and self._is_clean(server)):
            server.restart()
            if not self._is_clean(server):
                raise RuntimeError(f"{server} differs from its first start after a restart")

    def _is_clean(self, server: Server) -> bool:
        """Empty the server; False if that fails or its settings are not those it started with."""
        view = self._views.setdefault(server, View(server, ANSWER_S_MAX))
        try:
            replies = view.pipeline(_RESET)
        except OSError:
            return False
        if any(isinstance(reply, hiredis.ReplyError) for reply in replies):
            return False
        *_, role, acl, config, _ = replies
        state = [role[0], acl, sorted(zip(config[::2], config[1::2], strict=True))]
        return bool(self._states.setdefault(server, state) == state)
