"""Clients as tests want them: no restart guard (the servers are young), patient with the machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from aioredlock2 import Lease, NodeState, Redlock, Vote
from aioredlock2.embedded import Server
from tests.support.polling import until
from tests.support.relay import Relay

__all__ = ["NODE_TIMEOUT_S", "cut_off", "granted", "patient", "until_up", "up", "urls_of"]

NODE_TIMEOUT_S = 0.5
"""Healthy servers answer by then, also on a machine that is busy with something else."""


def patient(nodes: Iterable[Any], **options: Any) -> Redlock:
    """A client that doesn't take a slow machine for a dead node, unless the *options* say so."""
    return Redlock(nodes, **{"restart_guard": False, "node_timeout": NODE_TIMEOUT_S, **options})


async def until_up(redlock: Redlock, nodes: int) -> None:
    """Wait until exactly so many nodes vote."""
    await until(lambda: up(redlock) == nodes, within=10)


def up(redlock: Redlock) -> int:
    """How many nodes vote now."""
    return sum(node.state is NodeState.UP for node in redlock.nodes)


def granted(lease: Lease) -> set[int]:
    """The indexes of the nodes that are known to have voted for *lease*."""
    return {index for index, each in enumerate(lease.votes) if each.vote is Vote.GRANTED}


def urls_of(servers: Sequence[Server]) -> list[str]:
    """The URL of every server, in order."""
    return [server.url for server in servers]


def cut_off(relay: Relay) -> None:
    """The node behind *relay* is gone: its connections end, and dials are refused."""
    relay.refuse()
    relay.cut()
