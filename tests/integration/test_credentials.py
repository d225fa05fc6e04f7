"""Passwords: in URLs, in clients, from a provider that may change its mind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import pytest
import redis
import redis.asyncio
from redis.credentials import CredentialProvider

from aioredlock2 import NodeState
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.acl import NAME, PASSWORD, acl_user
from tests.support.clients import patient
from tests.support.connected import connected
from tests.support.facts import all_up, heard, works
from tests.support.fleet import Look
from tests.support.polling import until


async def test_a_password_of_special_characters(servers3: Sequence[Server], view: Look) -> None:
    """Percent-encoded in the URL, and given as it is to a client."""
    odd = "p@ss:w/rd?#[%41]&=+ \u00fc\u2603"
    with acl_user(servers3, view, "~*", "+@all", f">{odd}") as user:
        at = [url.rpartition("@")[2] for url in user.urls]
        given: list[Any] = [f"redis://{NAME}:{quote(odd, safe='')}@{server}" for server in at]
        host, port = at[2].split(":")
        given[2] = redis.asyncio.Redis(host=host, port=int(port), username=NAME, password=odd)
        async with patient(given) as redlock:
            await works(redlock)
        await given[2].aclose()


async def test_a_server_with_one_password_for_all(fresh_servers: StartServers) -> None:
    """`requirepass`, with and without the name of the default user."""
    (server,) = fresh_servers(1, options=["--requirepass", PASSWORD])
    at = f"{server.host}:{server.port}"
    for who in (f":{PASSWORD}", f"default:{PASSWORD}"):
        async with patient([f"redis://{who}@{at}"]) as redlock:
            await works(redlock)
    async with patient([server.url]) as redlock:
        assert redlock.nodes[0].state is NodeState.DOWN
        assert "wants a password" in redlock.nodes[0].cause


class Vault(CredentialProvider):
    """Gives out whatever the password is now."""

    def __init__(self) -> None:
        self.password = PASSWORD
        self.asked = 0
        self.error: Exception | None = None

    async def get_credentials_async(self) -> tuple[str, str]:
        self.asked += 1
        if self.error is not None:
            raise self.error
        return NAME, self.password


async def test_a_credential_provider_is_asked_at_every_dial(
    servers3: Sequence[Server], view: Look
) -> None:
    """A rotated password is picked up without a restart, as soon as a connection is needed."""
    vault = Vault()
    clients = [
        redis.asyncio.Redis(host=s.host, port=s.port, credential_provider=vault) for s in servers3
    ]
    with acl_user(servers3, view, "~*", "+@all") as user:
        async with connected(clients) as redlock, redlock("job", ttl=20) as lease:
            await heard(lease)
            assert 3 == vault.asked
            user.may("resetpass", ">rotated")
            for server in servers3:
                view(server).execute("CLIENT", "KILL", "USER", NAME)
            await until(lambda: all("username-password" in n.cause for n in redlock.nodes))
            vault.password = "rotated"
            await all_up(redlock)
            await lease.extend()
            await heard(lease)
    for client in clients:
        await client.aclose()


async def test_a_failing_credential_provider_is_an_outage(
    servers3: Sequence[Server], view: Look
) -> None:
    """Whatever it raises, the node is down (its text may hold secrets) and tries again."""
    vault = Vault()
    vault.error = LookupError(f"the vault is sealed, password was {PASSWORD}")
    client = redis.asyncio.Redis(
        host=servers3[0].host, port=servers3[0].port, credential_provider=vault
    )
    with acl_user(servers3, view, "~*", "+@all") as user:
        async with patient([client, *user.urls[1:]]) as redlock:
            await all_up(redlock, [1, 2])
            await until(lambda: "LookupError" in redlock.nodes[0].cause)
            async with redlock("job"):
                assert PASSWORD not in str(redlock.nodes)
            vault.error = None
            await works(redlock)
    await client.aclose()


@pytest.mark.loop
async def test_closing_in_the_midst_of_a_dial_leaves_nothing(
    servers3: Sequence[Server], view: Look
) -> None:
    """Whatever step of the dial it hits, right password or wrong: no connection, no stray error."""
    with acl_user(servers3, view, "~*", "+@all") as user:
        wrong = [url.replace(PASSWORD, "wrong") for url in user.urls]
        for turns in range(60):
            for urls in (user.urls, wrong):
                redlock = patient(urls)
                redlock.session()
                for _ in range(turns % 40):
                    await asyncio.sleep(0)
                await redlock.aclose()
        await until(lambda: not any(user.connections()))
        await until(lambda: len(asyncio.all_tasks()) == 1)
