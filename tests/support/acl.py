"""A user of limited rights on several servers, gone again after the test."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress

from aioredlock2.embedded import Server
from tests.support.fleet import Look

__all__ = ["AclUser", "acl_user"]

NAME = "app"
PASSWORD = "open-sesame"


class AclUser:
    """The same user on each of some servers."""

    def __init__(self, servers: Sequence[Server], look: Look) -> None:
        self._servers = servers
        self._look = look

    @property
    def urls(self) -> list[str]:
        """The servers' URLs with this user's name and password."""
        return [f"redis://{NAME}:{PASSWORD}@{s.host}:{s.port}" for s in self._servers]

    def may(self, *rules: str, on: Sequence[int] | None = None) -> None:
        """Add rules, on all servers or those with the indices *on*; takes effect at once."""
        for server in self._servers if on is None else [self._servers[i] for i in on]:
            self._look(server).acl("SETUSER", NAME, *rules)

    def connections(self) -> list[list[dict[str, str]]]:
        """Per server, this user's connections as CLIENT LIST shows them."""
        return [
            [c for c in self._look(server).client_list() if c["user"] == NAME]
            for server in self._servers
        ]

    def remove(self) -> None:
        """Delete the user on servers that are there; they close its connections."""
        for server in self._servers:
            with suppress(OSError):
                self._look(server).acl("DELUSER", NAME)


@contextmanager
def acl_user(servers: Sequence[Server], look: Look, *rules: str) -> Generator[AclUser]:
    """A user that may only do what *rules* say."""
    user = AclUser(servers, look)
    user.may("reset", "on", f">{PASSWORD}", *rules)
    for server in servers:
        look(server).acl("LOG", "RESET")
    try:
        yield user
    finally:
        user.remove()
