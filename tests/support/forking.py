"""A program that forks, for `Child`: ``python -m tests.support.forking URL...``.

It holds "x" and "body", forks, lets the forked process try everything with what it inherited, and
goes on when that has ended. Both print what they found, a line each.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import warnings
from collections.abc import Awaitable, Callable

from aioredlock2 import ConfigurationError, Lease, Redlock
from tests.support.clients import patient
from tests.support.connected import connected
from tests.support.facts import heard


async def refusal(call: Callable[[], Awaitable[object]]) -> str:
    """What the library says to a call with something inherited."""
    try:
        await call()
    except ConfigurationError as error:
        return str(error)
    return f"{call} worked"


async def try_everything(redlock: Redlock, lease: Lease) -> None:
    """In the child, in a loop of its own: all is refused and nothing is sent."""
    assert not lease.is_held
    assert lease.is_lost
    assert 0 == lease.remaining()
    for call in (
        lease.release,
        lease.extend,
        lease.lost,
        redlock("y").acquire,
        redlock("y").try_acquire,
        redlock("y").__aenter__,
        lambda: redlock.inspect("x"),
    ):
        said = await refusal(call)
        assert "fork" in said, said
    await redlock.aclose()


async def own_client(urls: list[str]) -> str:
    """A new client in the child works, and is a stranger to the parent's."""
    async with patient(urls) as redlock:
        assert await redlock("x").try_acquire() is None
        async with redlock("y", ttl=60) as lease:
            return lease.digest


def child(urls: list[str], redlock: Redlock, lease: Lease) -> None:
    """The forked process, after it has left the body of the lock it was in."""
    asyncio.run(try_everything(redlock, lease))
    print("child", asyncio.run(own_client(urls)))


async def main(urls: list[str]) -> None:
    """The parent."""
    random.seed(1)
    async with connected(urls) as redlock:
        lease = await redlock("x", ttl=60).acquire()
        await heard(lease)
        lock = redlock("body", ttl=60)
        await lock.__aenter__()
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            await lock.__aexit__(None, None, None)
            child(urls, redlock, lease)
            del redlock, lease, lock
            gc.collect()
            sys.stdout.flush()
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        print("status", status)
        assert lease.is_held
        await lease.extend()
        await heard(lease)
        print("body held", await redlock.is_locked("body"))
        await lock.__aexit__(None, None, None)
        async with redlock("y", ttl=60) as following:
            print("parent", following.digest)
        print("released", (await lease.release()).outcome)


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=DeprecationWarning)  # 3.12 on fork beside threads
    asyncio.run(main(sys.argv[1:]))
