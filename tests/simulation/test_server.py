"""The model server is a verified fake: it answers as the four kinds of real servers do."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import hiredis
import pytest

from aioredlock2._node import Request, Verb
from aioredlock2._redis import dialect
from tests.simulation.history import History
from tests.simulation.server import Server
from tests.simulation.world import Clock, World
from tests.support.pool import ServerPool
from tests.support.servers import Kind
from tests.support.view import Address, View

MODELS = {
    Kind.VALKEY9: "valkey 9.1",
    Kind.REDIS8: "redis 8.10",
    Kind.VALKEY8: "valkey 8.1",
    Kind.REDIS62: "redis 6.2",
}
KEYS = (b"redlock:a", b"redlock:b")
TOKENS = (b"1" * 32, b"2" * 32, b"3" * 32)
TTL_MS = 60_000
STEPS = 400
PTTL_MS_OFF = 30_000
EVERY_FORM = [form for forms in dialect.FORMS.values() for form in forms] + [dialect.WHOSE]


def parsed(data: bytes) -> list[Any]:
    """Everything that is in there."""
    reader = hiredis.Reader(notEnoughData=parsed)
    reader.feed(data)
    return list(iter(reader.gets, parsed))


def drawn(rng: random.Random) -> list[list[bytes]]:
    """Some request, in some form."""
    form = rng.choice(EVERY_FORM)
    verb = next((verb for verb, forms in dialect.FORMS.items() if form in forms), Verb.INSPECT)
    request = Request(verb, rng.choice(KEYS), rng.choice(TOKENS), TTL_MS)
    request.fence, request.gap = rng.choice((5, 5, 1000, 2000)), rng.choice((1, 7))
    return parsed(dialect.pack(form, request))


def plain(reply: object) -> object:
    """A reply without what differs between versions: an error's text beyond its first words."""
    if isinstance(reply, hiredis.ReplyError):
        return " ".join(str(reply).replace("'", "").split()[:2])
    return [plain(part) for part in reply] if isinstance(reply, list) else reply


def model_of(kind: Kind) -> Server:
    """An empty model server."""
    return Server(World(), History(), "n1", kind=MODELS[kind], clock=Clock(0.0), seed=1)


def test_every_form_is_answered_as_by_the_real_server(
    pool: ServerPool, any_kind: Kind, view: Callable[[Address], View], rng: random.Random
) -> None:
    (real,) = pool.take(any_kind, 1)
    model = model_of(any_kind)
    seen = set()
    for _ in range(STEPS):
        commands = drawn(rng)
        if rng.random() < 0.01:
            commands = [[b"SCRIPT", b"FLUSH"]]
            model.flush_scripts()
            view(real).pipeline([tuple(words) for words in commands])
            continue
        expected, got = (
            view(real).pipeline([tuple(words) for words in commands]),
            parsed(model.execute(commands, "p1")),
        )
        assert len(expected) == len(got)
        for words, theirs, ours in zip(commands, expected, got, strict=True):
            seen.add((words[0], str(plain(ours))[:4]))
            if words[0] == b"PTTL" and theirs > 0:
                assert abs(theirs - ours) < PTTL_MS_OFF
            else:
                assert plain(theirs) == plain(ours), commands
    assert len(seen) > 20


def test_keys_expire_by_the_servers_own_clock() -> None:
    world, history = World(), History()
    server = Server(world, history, "n1", kind="redis 6.2", clock=Clock(100.0, 2.0), seed=1)
    set_ = [b"SET", KEYS[0], TOKENS[0], b"NX", b"PX", b"1000"]
    assert server.execute([set_, set_], "p1") == b"+OK\r\n_\r\n"
    world.run(0.499)
    assert server.get(KEYS[0]) == TOKENS[0]
    world.run(0.501)
    assert server.get(KEYS[0]) is None
    (expired,) = history.expired
    assert expired.at == pytest.approx(0.5)
    assert expired.token == TOKENS[0]


def test_a_key_without_a_ttl_is_an_oddity() -> None:
    server = model_of(Kind.VALKEY9)
    server.execute([[b"SET", KEYS[0], TOKENS[0]]], "p1")
    assert "without a ttl" in server._history.oddities[0]
