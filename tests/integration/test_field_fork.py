"""Forked and seeded processes: the parent's client is dead in the child, and tokens never repeat."""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Sequence

import pytest

from aioredlock2.embedded import Server
from tests.support.child import Child
from tests.support.clients import urls_of
from tests.support.connected import connected
from tests.support.fleet import Look, all_keys, everywhere
from tests.support.relay import Relays


async def test_h43_a_forked_child_finds_the_parents_client_dead_and_leaves_it_alone(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """In the child the lease is lost, every call says why, leaving and closing send nothing; a new
    client works there; and the parent goes on with its lease, over the very same connections.
    """
    with Child("tests.support.forking", *relays3.urls, options=["-X", "dev"]) as parent:
        ended = await asyncio.to_thread(parent.finish)
    assert 0 == ended.status, ended.errors
    assert not re.search("Traceback|ResourceWarning|is down", ended.errors), ended.errors
    told = dict(line.rsplit(" ", 1) for line in ended.lines)
    assert {"status": "0", "body held": "True", "released": "clean"}.items() <= told.items()
    assert told["child"] != told["parent"]
    # One connection per node is the parent's, the other one the child's own.
    assert [2, 2, 2] == [relay.accepts for relay in relays3]
    assert set() == all_keys(view, servers3)


async def test_f065_processes_that_are_seeded_alike_have_different_tokens(
    servers3: Sequence[Server],
) -> None:
    """`random.seed(1)` in two processes: the tokens come from the operating system."""
    urls = urls_of(servers3)
    with (
        Child("tests.support.programs", "seeded", *urls) as one,
        Child("tests.support.programs", "seeded", *urls) as two,
    ):
        digests = [await asyncio.to_thread(child.line) for child in (one, two)]
        assert 0 == (await asyncio.to_thread(one.finish)).status
        assert 0 == (await asyncio.to_thread(two.finish)).status
    assert digests[0] != digests[1]


@pytest.mark.loop
async def test_f065_every_acquisition_has_128_random_bits_of_its_own(
    servers3: Sequence[Server], view: Look
) -> None:
    """The same seed before each: 32 hex characters, never the same twice; nothing else is stored."""
    tokens = set()
    async with connected(urls_of(servers3)) as redlock:
        for _ in range(20):
            random.seed(1)
            async with redlock("x", ttl=60) as lease:
                token = await everywhere(view, servers3, "x")
                assert re.fullmatch(rb"[0-9a-f]{32}", token)
                assert token.decode() not in f"{lease!r} {lease.votes} {lease.digest}"
                tokens.add(token)
    assert 20 == len(tokens)
