"""Several servers looked at together, past all relays."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Sequence

from tests.support.polling import until
from tests.support.view import Address, Monitor, View

__all__ = [
    "Look",
    "all_keys",
    "everywhere",
    "key_of",
    "monitors",
    "plant",
    "quorum_ttl",
    "values",
    "wipe",
]

Look = Callable[[Address], View]
"""The fixture `view`."""


def key_of(resource: str) -> str:
    """The lock key of a resource under the default prefix."""
    return f"redlock:{resource}"


def values(view: Look, servers: Sequence[Address], resource: str) -> list[bytes | None]:
    """Per server, what is stored under the resource's lock key."""
    return [view(server).get(key_of(resource)) for server in servers]


def all_keys(view: Look, servers: Sequence[Address]) -> set[bytes]:
    """Every key that any of the servers has."""
    return set().union(*(view(server).keys() for server in servers))


def quorum_ttl(view: Look, servers: Sequence[Address], resource: str) -> float:
    """Seconds until fewer than a majority of the servers have the key; negative without one."""
    left = sorted((view(server).pttl(key_of(resource)) for server in servers), reverse=True)
    return left[len(servers) // 2] / 1000


def wipe(view: Look, servers: Sequence[Address], resource: str) -> None:
    """Delete the resource's lock key, whoever's it is."""
    for server in servers:
        view(server).execute("DEL", key_of(resource))


def plant(view: Look, servers: Sequence[Address], resource: str, value: str = "foreign") -> None:
    """Put another value under the resource's lock key, for a minute."""
    for server in servers:
        view(server).execute("SET", key_of(resource), value, "PX", 60_000)


async def everywhere(view: Look, servers: Sequence[Address], resource: str) -> bytes:
    """The one value that all servers have; waits for those a round didn't wait for."""

    def the_value() -> bytes | None:
        found = values(view, servers, resource)
        return found[0] if len(set(found)) == 1 else None

    value = await until(the_value)
    assert value is not None
    return value


@contextlib.contextmanager
def monitors(view: Look, servers: Sequence[Address]) -> Generator[list[Monitor]]:
    """Per server, what it executes in the block."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(view(server).monitor()) for server in servers]
