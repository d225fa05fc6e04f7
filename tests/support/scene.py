"""The usual scene of tests in virtual time: nodes a round trip away, one name, others who hold it."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import pytest

from aioredlock2 import AcquireError
from aioredlock2._node import Verb
from tests.support.model_node import ModelNode, Way, model_nodes
from tests.support.virtual import the_loop

__all__ = [
    "FOREIGN",
    "KEY",
    "NODE_TIMEOUT",
    "ROUND_TRIP",
    "SLACK",
    "cut",
    "free",
    "hold_elsewhere",
    "holders",
    "nearby",
    "now",
    "refused",
    "restore",
    "rounds_at",
]

KEY = b"redlock:x"
"""Where the default prefix puts the resource "x"."""
FOREIGN = b"f" * 32
"""Another client's token."""
NODE_TIMEOUT = 0.05
"""By the default ttl of 10 s."""
ROUND_TRIP = 0.002
SLACK = 1e-6
"""What sums of floats may be off by."""


def nearby(count: int = 5) -> list[ModelNode]:
    """Nodes with a round trip of 2 ms."""
    nodes = model_nodes(count)
    for node in nodes:
        node.way = Way(ROUND_TRIP / 2, ROUND_TRIP / 2)
    return nodes


def hold_elsewhere(nodes: Sequence[ModelNode], ttl: float = 3600) -> None:
    """Another client has the name there."""
    for node in nodes:
        node.server.put(KEY, FOREIGN, ttl)


def free(nodes: Sequence[ModelNode]) -> None:
    """Nobody has it any more."""
    for node in nodes:
        node.server.take(KEY)


def holders(nodes: Sequence[ModelNode]) -> list[bytes | None]:
    """Per node, the token that has the name."""
    stored = [node.server.get(KEY) for node in nodes]
    return [None if one is None else one[0] for one in stored]


def cut(nodes: Sequence[ModelNode]) -> None:
    """Their connections break."""
    for node in nodes:
        node.cut("reset")


def restore(nodes: Sequence[ModelNode]) -> None:
    """They are connected again."""
    for node in nodes:
        node.restore()


def rounds_at(nodes: Sequence[ModelNode], verb: Verb = Verb.GRANT) -> list[float]:
    """When each round of this kind was asked of the first node."""
    return [asked.at for asked in nodes[0].asked if asked.verb is verb]


def now() -> float:
    """By the clock that leases go by."""
    return the_loop().boottime()


async def refused(acquiring: Awaitable[object]) -> tuple[AcquireError, float]:
    """The error that it ends with, and after what time."""
    started_at = now()
    with pytest.raises(AcquireError) as caught:
        await acquiring
    return caught.value, now() - started_at
