"""A client whose nodes are all there before the test begins."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Iterable
from typing import Any

from aioredlock2 import Redlock
from tests.support.clients import patient
from tests.support.facts import all_up

__all__ = ["connected"]


@contextlib.asynccontextmanager
async def connected(nodes: Iterable[Any], **options: Any) -> AsyncGenerator[Redlock]:
    """A `patient` client, used once all its nodes vote: each round goes to all of them."""
    async with patient(nodes, **options) as redlock:
        await all_up(redlock)
        yield redlock
