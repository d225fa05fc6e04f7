"""TLS to a real server, by way of a relay that ends it in front of the server."""

from __future__ import annotations

import ssl
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
import trustme

from aioredlock2 import NodeState
from aioredlock2.embedded import Server
from tests.support.clients import patient
from tests.support.facts import all_up, deleted, heard, works
from tests.support.polling import until
from tests.support.relay import Relays


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def ca_file(authority: trustme.CA, tmp_path: Path) -> Path:
    path = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    """What a server shows: a certificate for 127.0.0.1."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.fixture
def tls_relays(servers3: Sequence[Server], tls: ssl.SSLContext) -> Generator[Relays]:
    with Relays(servers3, tls=tls) as running:
        yield running


@pytest.mark.loop
async def test_tls_by_url(tls_relays: Relays, ca_file: Path) -> None:
    """rediss:// with an authority of one's own; a cut connection is dialled anew."""
    async with patient([f"{url}?ssl_ca_certs={ca_file}" for url in tls_relays.urls]) as redlock:
        await works(redlock)
        for relay in tls_relays:
            relay.cut()
        await until(lambda: all(relay.accepts == 2 for relay in tls_relays))
        await works(redlock)


@pytest.mark.loop
async def test_tls_carries_many_locks_in_small_pieces(tls_relays: Relays, ca_file: Path) -> None:
    """Hundreds of locks at once over one TLS connection per node, byte by byte."""
    tls_relays[0].to_client.split = True
    urls = [f"{url}?ssl_ca_certs={ca_file}" for url in tls_relays.urls]
    async with patient(urls, node_timeout=2) as redlock:
        await all_up(redlock)
        dialled = [relay.accepts for relay in tls_relays]
        leases = [await redlock(f"job{i}").acquire() for i in range(50)]
        for lease in leases:
            await heard(lease)
        for lease in leases:
            await deleted(await lease.release())
    assert dialled == [relay.accepts for relay in tls_relays]


async def test_tls_by_an_existing_client(tls_relays: Relays, ca_file: Path) -> None:
    """Its TLS settings are copied; the client itself stays usable."""
    clients = [
        redis.asyncio.Redis(host=relay.host, port=relay.port, ssl=True, ssl_ca_certs=str(ca_file))
        for relay in tls_relays
    ]
    async with patient(clients) as redlock:
        await works(redlock)
    for client in clients:
        assert await client.ping()
        await client.aclose()


async def test_tls_with_a_client_certificate(
    servers3: Sequence[Server],
    tls: ssl.SSLContext,
    authority: trustme.CA,
    ca_file: Path,
    tmp_path: Path,
) -> None:
    """Servers that ask who is calling are shown the certificate of the URL."""
    tls.verify_mode = ssl.CERT_REQUIRED
    authority.configure_trust(tls)
    mine = authority.issue_cert("client.test")
    key_file, cert_file = tmp_path / "key.pem", tmp_path / "cert.pem"
    mine.private_key_pem.write_to_path(str(key_file))
    mine.cert_chain_pems[0].write_to_path(str(cert_file))
    shown = f"?ssl_ca_certs={ca_file}&ssl_keyfile={key_file}&ssl_certfile={cert_file}"
    with Relays(servers3, tls=tls) as relays:
        async with patient([url + shown for url in relays.urls]) as redlock:
            await works(redlock)


async def test_tls_settings_are_loaded_once_per_node(
    servers3: Sequence[Server],
    tls_relays: Relays,
    ca_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Reading the trusted certificates takes long, in the loop: not again with every dial."""
    made = []
    create = ssl.create_default_context

    def counted(*args: Any, **kwargs: Any) -> ssl.SSLContext:
        made.append(args)
        return create(*args, **kwargs)

    monkeypatch.setattr(ssl, "create_default_context", counted)
    away = tls_relays[2]
    away.refuse()
    async with patient([f"{url}?ssl_ca_certs={ca_file}" for url in tls_relays.urls]) as redlock:
        await all_up(redlock, [0, 1])
        async with redlock("job", ttl=1.5):
            for _ in range(3):
                away.accept()
                await all_up(redlock)
                away.refuse()
                away.cut()
                await until(lambda: redlock.nodes[2].state is NodeState.DOWN)
            assert 5 <= sum(relay.accepts for relay in tls_relays)
    assert 3 >= len(made)


async def test_a_certificate_nobody_vouches_for_is_refused(tls_relays: Relays) -> None:
    """No silent fallback: the node is down, and says why."""
    async with patient(tls_relays.urls) as redlock:
        await until(lambda: all(node.state is NodeState.DOWN for node in redlock.nodes))
        assert all("CERTIFICATE_VERIFY_FAILED" in node.cause for node in redlock.nodes)


async def test_a_certificate_for_another_host_is_refused(
    servers3: Sequence[Server], authority: trustme.CA, ca_file: Path
) -> None:
    """The name is checked, unless the URL says otherwise."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("elsewhere.test").configure_cert(context)
    with Relays(servers3, tls=context) as relays:
        urls = [f"{url}?ssl_ca_certs={ca_file}" for url in relays.urls]
        async with patient(urls) as redlock:
            await until(lambda: all(node.state is NodeState.DOWN for node in redlock.nodes))
            assert all("CERTIFICATE_VERIFY_FAILED" in node.cause for node in redlock.nodes)
        async with patient([f"{url}&ssl_check_hostname=false" for url in urls]) as redlock:
            await works(redlock)
