"""A Redis node without a server: its link only writes down what is sent, the test answers."""

from __future__ import annotations

from typing import Any, cast

from aioredlock2._node import NodeState
from aioredlock2._nodes.redis import RedisNode
from aioredlock2._redis.transport import Link
from tests.support.model_node import LoneHost
from tests.support.virtual import VirtualRuntime, the_loop

__all__ = ["Recorder", "node_over"]


class Recorder:
    """In the place of a link: takes what is sent."""

    overdue = False

    def __init__(self) -> None:
        self.slots: list[Any] = []

    def send(self, _data: bytes, slot: object, _replies: int = 1, _join: bool = False) -> None:
        self.slots.append(slot)


def node_over(link: Recorder | None) -> RedisNode:
    """A node that is up over this link, or away without one."""
    node = RedisNode("redis://localhost:1", b"redlock:")
    node._host = LoneHost(VirtualRuntime(the_loop()))
    node._loop = the_loop()
    node._state = NodeState.UP
    node._link = cast("Link | None", link)
    return node
