"""The shared servers are as good as new for each test, and the view tells what happened."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from aioredlock2.embedded import Server
from tests.support.pool import ServerPool
from tests.support.servers import Kind
from tests.support.view import Address, View

Spoil = Callable[[Server, View], object]


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda server, view: view.execute("SET", "k", "v"), id="key"),
        pytest.param(lambda server, view: view.config_set(maxmemory=1), id="config"),
        pytest.param(lambda server, view: view.acl("SETUSER", "app", "on", "nopass"), id="acl"),
        pytest.param(lambda server, view: view.execute("REPLICAOF", "127.0.0.1", 9), id="replica"),
        pytest.param(lambda server, view: view.execute("SCRIPT", "LOAD", "return 1"), id="script"),
        pytest.param(lambda server, view: view.execute("CLIENT", "PAUSE", 99999), id="pause"),
        pytest.param(lambda server, view: server.freeze(), id="frozen"),
        pytest.param(lambda server, view: server.kill(), id="killed"),
    ],
)
def test_whatever_a_test_did_the_next_one_finds_nothing_of_it(
    pool: ServerPool, any_kind: Kind, view: Callable[[Address], View], spoil: Spoil
) -> None:
    (server,) = pool.take(any_kind, 1)
    looked = view(server)
    sha = "e0e1f9fabfc9d4800c877a703b823ac0578ff8db"  # of "return 1"
    before = looked.pipeline([("CONFIG", "GET", "maxmemory"), ("ACL", "LIST")])
    spoil(server, looked)
    assert [server] == pool.take(any_kind, 1)
    assert before == looked.pipeline([("CONFIG", "GET", "maxmemory"), ("ACL", "LIST")])
    assert set() == looked.keys()
    assert "master" == looked.info("replication")["role"]
    assert [0] == looked.execute("SCRIPT", "EXISTS", sha)


def test_the_view_tells_what_was_asked(
    pool: ServerPool, any_kind: Kind, view: Callable[[Address], View]
) -> None:
    (server,) = pool.take(any_kind, 1)
    looked = view(server)
    with looked.monitor() as monitor, View(server) as other:
        other.execute("SET", "k", b'a "\xff\\\n', "PX", 60_000)
        other.execute("EVAL", "return redis.call('GET', KEYS[1])", 1, "k")
        asked = [words for words in monitor.commands() if words[0] != b"CLIENT"]
    assert [b"SET", b"k", b'a "\xff\\\n', b"PX", b"60000"] == asked[0]
    assert [b"GET", b"k"] == asked[2]
    assert 1 == looked.commandstats()["set"]
    assert 59_000 < looked.pttl("k") <= 60_000
    assert [] == looked.client_list()
