"""Every way to name a server leads to a working node: each is tried against a real one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import redis
import redis.asyncio

from aioredlock2 import ConfigurationError, NodeState, Redlock
from aioredlock2.embedded import Server
from tests.conftest import StartServers
from tests.support.acl import PASSWORD, acl_user
from tests.support.clients import patient
from tests.support.connected import connected
from tests.support.facts import heard, works
from tests.support.fleet import Look
from tests.support.polling import until
from tests.support.servers import Kind


async def test_a_url_with_database_user_and_options(servers3: Sequence[Server], view: Look) -> None:
    """What `from_url` understands is understood: database by path or query, user, password."""
    first, second, third = servers3
    with acl_user([second], view, "~*", "+@all") as user:
        urls = [f"{first.url}/3", f"{user.urls[0]}?db=3", f"{third.url}?db=3&client_name=me"]
        async with connected(urls) as redlock, redlock("job") as lease:
            await heard(lease)
            assert {0} == {len(view(server).keys()) for server in servers3}
            clients = [c for s in servers3 for c in view(s).client_list()]
            assert ["3"] * 3 == [c["db"] for c in clients]
            assert [f"{s.host}:{s.port}" for s in servers3] == [n.name for n in redlock.nodes]


@pytest.mark.loop
async def test_unix_sockets(fresh_servers: StartServers, tmp_path: Path) -> None:
    """unix:// with and without a password; a server that restarts is found again."""
    plain, locked = tmp_path / "a", tmp_path / "b"
    fresh_servers(1, options=["--unixsocket", str(plain)])
    (second,) = fresh_servers(1, options=["--unixsocket", str(locked), "--requirepass", PASSWORD])
    urls = [f"unix://{plain}", f"unix://:{PASSWORD}@{locked}", f"unix://{plain}?db=0"]
    with pytest.raises(ConfigurationError, match="same address"):
        Redlock(urls)
    async with patient(urls[:2]) as redlock:
        await works(redlock)
        assert [f"unix:{plain}", f"unix:{locked}"] == [node.name for node in redlock.nodes]
        second.kill()
        await until(lambda: redlock.nodes[1].state is not NodeState.UP)
        second.restart()
        await works(redlock)


async def test_ipv6_and_names(fresh_servers: StartServers) -> None:
    """An IPv6 literal and a name are resolved like anywhere else; names ignore case."""
    if not Path("/proc/net/if_inet6").exists():
        pytest.skip("no IPv6 here")
    one, two = fresh_servers(2, options=["--bind", "127.0.0.1", "::1"])
    async with patient([f"redis://[::1]:{one.port}", f"redis://LocalHost:{two.port}"]) as redlock:
        await works(redlock)
        assert [f"[::1]:{one.port}", f"localhost:{two.port}"] == [n.name for n in redlock.nodes]


async def test_each_kind_is_dialled_by_plain_url(
    any_servers3: Sequence[Server], any_kind: Kind
) -> None:
    """All four kinds of server answer the same URLs."""
    async with patient([server.url for server in any_servers3]) as redlock:
        await works(redlock)
        name = any_kind.label.rstrip("0123456789")
        assert all(node.server.startswith(f"{name} ") for node in redlock.nodes)


def test_other_clients_are_refused_with_advice() -> None:
    """A blocking client, a cluster client, a socket: TypeError that names what would do."""
    for given in (redis.Redis(), redis.ConnectionPool(), ("10.0.0.1", 6379), 6379, None):
        with pytest.raises(TypeError, match=r"URL.*redis\.asyncio\.Redis"):
            Redlock([given])  # type: ignore[list-item]
