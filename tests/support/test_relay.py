"""The relay does what its users rely on."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time
from collections.abc import Callable, Generator, Sequence

import pytest
import trustme

from aioredlock2.embedded import Server
from tests.support.relay import Relay, Relays
from tests.support.view import Address, View

LATE_S = 0.1
SOON_S = 2.0


@pytest.fixture
def relay(pool_server: Server) -> Generator[Relay]:
    with Relays([pool_server]) as relays:
        yield relays[0]


@pytest.fixture
def pool_server(servers3: Sequence[Server]) -> Server:
    return servers3[0]


@pytest.fixture
def client(relay: Relay) -> Generator[socket.socket]:
    with dial(relay) as connection:
        yield connection


def dial(relay: Relay) -> socket.socket:
    return socket.create_connection((relay.host, relay.port), SOON_S)


def ask(connection: socket.socket, request: bytes = b"PING\r\n") -> bytes:
    connection.sendall(request)
    return connection.recv(4096)


def receive_all(connection: socket.socket) -> bytes:
    """Everything until the stream ends, by a close or by a reset."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while data := connection.recv(4096):
            received += data
    return received


def is_silent(connection: socket.socket) -> bool:
    connection.settimeout(LATE_S)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        return True
    finally:
        connection.settimeout(SOON_S)
    return False


def eventually(fact: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + SOON_S
    while not fact():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def test_bytes_pass_and_are_counted(relay: Relay, client: socket.socket) -> None:
    assert b"+PONG\r\n" == ask(client)
    assert b"+PONG\r\n" == ask(client)
    assert (12, 2) == (relay.to_server.bytes, relay.to_server.segments)
    assert (14, 2) == (relay.to_client.bytes, relay.to_client.segments)
    assert (1, 1) == (relay.accepts, relay.connections)


@pytest.mark.parametrize("side", ["to_server", "to_client"])
def test_a_delayed_direction_is_late_and_keeps_its_order(
    relay: Relay, client: socket.socket, side: str
) -> None:
    getattr(relay, side).delay_s = LATE_S
    started_at = time.monotonic()
    assert b"$1\r\na\r\n" == ask(client, b"ECHO a\r\n")
    assert LATE_S <= time.monotonic() - started_at < SOON_S


def test_a_held_reply_was_executed_and_comes_with_the_release(
    relay: Relay, client: socket.socket, pool_server: Server, view: Callable[[Address], View]
) -> None:
    relay.to_client.hold()
    client.sendall(b"SET k v\r\nGET k\r\n")
    assert is_silent(client)
    assert b"v" == view(pool_server).get("k")
    relay.to_client.release()
    assert b"+OK\r\n$1\r\nv\r\n" == client.recv(4096)


def test_a_held_request_reaches_the_server_after_its_client_is_gone(
    relay: Relay, client: socket.socket, pool_server: Server, view: Callable[[Address], View]
) -> None:
    relay.to_server.hold()
    client.sendall(b"SET k v\r\n")
    client.close()
    assert eventually(lambda: relay.to_server.bytes > 0)
    assert view(pool_server).get("k") is None
    assert 1 == relay.connections
    relay.to_server.release()
    assert eventually(lambda: view(pool_server).get("k") == b"v")
    assert eventually(lambda: relay.connections == 0)


def test_a_held_direction_pushes_back(relay: Relay, client: socket.socket) -> None:
    relay.to_server.hold()
    client.settimeout(LATE_S)
    with pytest.raises(TimeoutError):
        client.sendall(bytes(100_000_000))
    assert relay.to_server.bytes < 1_000_000


def test_a_cut_resets_the_client(relay: Relay, client: socket.socket) -> None:
    assert b"+PONG\r\n" == ask(client)
    relay.cut()
    with pytest.raises(ConnectionResetError):
        client.recv(1)
    assert 0 == relay.connections


def test_a_close_ends_the_stream(relay: Relay, client: socket.socket) -> None:
    assert b"+PONG\r\n" == ask(client)
    relay.close()
    assert b"" == client.recv(1)


def test_a_cut_after_replies_lets_these_pass_whole(relay: Relay, client: socket.socket) -> None:
    relay.cut_after(replies=2, keep_bytes=3)
    client.sendall(b"ECHO a\r\n" * 3)
    assert b"$1\r\na\r\n$1\r\na\r\n$1\r" == receive_all(client)


def test_split_writes_are_the_same_bytes(relay: Relay, client: socket.socket) -> None:
    relay.to_client.split = True
    client.sendall(b"ECHO %b\r\n" % (b"abc" * 1000))
    received, reads = b"", 0
    while len(received) < 3009:
        received += client.recv(4096)
        reads += 1
    assert b"$3000\r\n%b\r\n" % (b"abc" * 1000) == received
    assert reads > 1


def test_a_rewritten_reply_arrives_instead(relay: Relay, client: socket.socket) -> None:
    relay.to_client.rewrite = lambda data: data.replace(b"PONG", b"GNOP")
    assert b"+GNOP\r\n" == ask(client)


def test_a_refusing_relay_keeps_what_it_has(relay: Relay, client: socket.socket) -> None:
    assert b"+PONG\r\n" == ask(client)
    relay.refuse()
    with pytest.raises(ConnectionRefusedError):
        dial(relay)
    assert b"+PONG\r\n" == ask(client)
    relay.accept()
    with dial(relay) as other:
        assert b"+PONG\r\n" == ask(other)


def test_a_relay_that_hangs_up_accepts_first(relay: Relay) -> None:
    relay.hang_up()
    with dial(relay) as connection:
        assert b"" == receive_all(connection)
    assert 1 == relay.accepts
    relay.accept()
    with dial(relay) as connection:
        assert b"+PONG\r\n" == ask(connection)


def test_a_dead_target_resets_the_client(relay: Relay, pool_server: Server) -> None:
    pool_server.kill()
    with pytest.raises(ConnectionResetError), dial(relay) as connection:
        connection.recv(1)


def test_a_killed_server_ends_the_connection(
    relay: Relay, client: socket.socket, pool_server: Server
) -> None:
    assert b"+PONG\r\n" == ask(client)
    pool_server.kill()
    assert b"" == client.recv(1)


def test_new_connections_go_to_the_new_target(
    relay: Relay, client: socket.socket, servers3: Sequence[Server]
) -> None:
    assert b"+OK\r\n" == ask(client, b"SET k v\r\n")
    relay.retarget(servers3[1])
    with dial(relay) as other:
        assert b"$-1\r\n" == ask(other, b"GET k\r\n")
    assert b"$1\r\nv\r\n" == ask(client, b"GET k\r\n")


def test_a_relay_can_speak_tls(pool_server: Server) -> None:
    authority = trustme.CA()
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(served)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with Relays([pool_server], tls=served) as relays:
        assert relays.urls == [f"rediss://127.0.0.1:{relays[0].port}"]
        with trusting.wrap_socket(dial(relays[0]), server_hostname="127.0.0.1") as connection:
            assert b"+PONG\r\n" == ask(connection)


def test_an_error_in_a_relay_comes_out_of_stop(pool_server: Server) -> None:
    relays = Relays([pool_server])
    relays[0].to_client.rewrite = lambda data: data[1 // (len(data) - 7) :]
    with dial(relays[0]) as connection:
        connection.sendall(b"PING\r\n")
        assert b"" == receive_all(connection)
    with pytest.raises(ExceptionGroup, match="relays failed"):
        relays.stop()
