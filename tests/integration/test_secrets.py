"""No token and no password is ever shown, whatever goes wrong (field case F117)."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import re
import traceback
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import redis.asyncio
from redis.credentials import CredentialProvider

from aioredlock2 import (
    ConfigurationError,
    LeaseError,
    LockContended,
    NodeState,
    Redlock,
    RedlockError,
    Vote,
)
from aioredlock2.embedded import Server
from tests.conftest import LOOP
from tests.support.acl import PASSWORD, acl_user
from tests.support.clients import patient, urls_of
from tests.support.connected import connected
from tests.support.facts import all_up, heard
from tests.support.fleet import Look, plant, wipe
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.proxy import forget
from tests.support.relay import Relay, Relays
from tests.support.servers import Kind

TOKEN = re.compile(rb"[0-9a-f]{32}")
SECRET = "hunter2-in-the-vault"


class Shown:
    """Everything that a user, a log or a crash report could get to see."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.errors: list[BaseException] = []

    def note(self, *things: object) -> None:
        for thing in things:
            self.texts += [repr(thing), str(thing)]

    def note_error(self, error: BaseException | None) -> None:
        """The error with its whole chain, its data and its traceback."""
        while error is not None:
            self.errors.append(error)
            self.note(error, error.args, getattr(error, "__notes__", []), vars(error))
            self.texts += traceback.format_exception(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    @contextlib.contextmanager
    def failing(self) -> Iterator[None]:
        """What happens inside may fail with one of our errors; it is noted."""
        try:
            yield
        except RedlockError as error:
            self.note_error(error)

    def note_objects(self) -> None:
        """Every object of the library that is alive, by its repr and str."""
        for thing in gc.get_objects():
            if type(thing).__module__.startswith("aioredlock2"):
                with contextlib.suppress(Exception):
                    self.note(thing)

    def leaks(self, secrets: set[str]) -> list[str]:
        return [text for text in self.texts for secret in secrets if secret in text]


class Keeper(logging.Handler):
    """Notes every record whole."""

    def __init__(self, kept: Shown) -> None:
        super().__init__(logging.DEBUG)
        self._kept = kept

    def emit(self, record: logging.LogRecord) -> None:
        self._kept.note(record.getMessage(), record.args, record.exc_info)


@pytest.fixture
def shown() -> Iterator[Shown]:
    """Gathers all log records of all loggers at all levels, and all warnings."""
    kept = Shown()
    handler = Keeper(kept)
    root = logging.getLogger()
    level, root_level = logging.getLogger("aioredlock2").level, root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    logging.getLogger("aioredlock2").setLevel(logging.DEBUG)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        yield kept
        kept.note(*warned)
    root.removeHandler(handler)
    root.setLevel(root_level)
    logging.getLogger("aioredlock2").setLevel(level)


def told_tokens(commands: list[list[bytes]]) -> set[str]:
    """The tokens among what a server was asked."""
    return {word.decode() for words in commands for word in words if TOKEN.fullmatch(word)}


@pytest.mark.parametrize("kind", [Kind.VALKEY9, Kind.REDIS62], ids=lambda kind: kind.label)
async def test_f117_no_secret_is_shown_whatever_happens(
    pool: ServerPool, view: Look, shown: Shown, kind: Kind
) -> None:
    """Dozens of faults, asyncio's debug log of every callback included: searched for the secrets."""
    servers = pool.take(kind, 3)
    loop = asyncio.get_running_loop()
    loop.set_debug(True)
    loop.slow_callback_duration = 0
    view(servers[0]).keys()
    with (
        view(servers[0]).monitor() as monitor,
        acl_user(servers, view, "~*", "+@all") as user,
        Relays(servers) as relays,
    ):
        credentials = user.urls[0].partition("@")[0]
        urls = [f"{credentials}@{relay.host}:{relay.port}" for relay in relays]
        async with patient(urls, node_timeout=0.1) as one, patient(urls, node_timeout=0.1) as two:
            await all_up(one)
            await all_up(two)
            await faults_of_keys(one, two, servers, view, shown)
            await faults_of_fences(one, two, servers, view, shown)
            await faults_of_the_wire(one, two, relays, shown)
            await faults_of_the_server(one, relays, servers, view, shown)
            await faults_of_rights(one, user, shown)
            shown.note(one, two, one.nodes, two.nodes)
            shown.note_objects()
        tokens = told_tokens(monitor.commands())
    loop.set_debug(False)
    assert len(tokens) > 15
    assert len(shown.errors) > 10
    assert len(shown.texts) > 1000
    assert [] == shown.leaks({PASSWORD, *tokens})[:3]


async def faults_of_keys(
    one: Redlock, two: Redlock, servers: Sequence[Server], view: Look, shown: Shown
) -> None:
    """Contended, foreign, of another type, gone while held."""
    lease = await one("job", ttl=20).acquire()
    await heard(lease)
    shown.note(lease, lease.votes, one("job"), await two.inspect("job"))
    with shown.failing():
        await two("job", wait=0.05).acquire()
    with shown.failing():
        await one("job", wait=0).acquire()
    shown.note(report := await lease.release(), report.nodes)
    plant(view, servers, "job")
    with shown.failing():
        await one("job", wait=0.05).acquire()
    wipe(view, servers, "job")
    for server in servers:
        view(server).execute("LPUSH", "redlock:job", "x")
    with shown.failing():
        await one("job", wait=0.05).acquire()
    shown.note(await one.inspect("job"))
    wipe(view, servers, "job")
    lost = await one("job", ttl=20).acquire()
    await heard(lost)
    wipe(view, servers, "job")
    plant(view, servers[:2], "job")
    with shown.failing():
        await lost.extend()
    shown.note(lost, report := await lost.release(), report.nodes)
    shown.note_objects()
    wipe(view, servers, "job")
    dropped = await one("dropped", ttl=2).acquire()
    shown.note(dropped)
    del dropped
    gc.collect()


async def faults_of_fences(
    one: Redlock, two: Redlock, servers: Sequence[Server], view: Look, shown: Shown
) -> None:
    """Held, contended, to be confirmed, of another type, lost."""
    lease = await one("fenced", ttl=20, fenced=True).acquire()
    await heard(lease)
    shown.note(lease, lease.votes, lease.fence, await two.inspect("fenced"))
    with shown.failing():
        await two("fenced", wait=0.05, fenced=True).acquire()
    shown.note(report := await lease.release(), report.nodes)
    counter = "{redlock:fenced}:fence"
    view(servers[1]).execute("SET", counter, lease.fence + 10**6, "PX", 60_000)
    async with one("fenced", fenced=True) as confirmed:
        shown.note(confirmed, confirmed.votes)
    for server in servers[:2]:
        view(server).execute("DEL", counter)
        view(server).execute("LPUSH", counter, "x")
    with shown.failing():
        await one("fenced", wait=0.05, fenced=True).acquire()
    assert "the fence key" in str(shown.errors[-1])
    for server in servers:
        view(server).execute("DEL", counter)
    lost = await one("fenced", ttl=20, fenced=True).acquire()
    await heard(lost)
    wipe(view, servers, "fenced")
    with shown.failing():
        await lost.extend()
    shown.note(lost, report := await lost.release(), report.nodes)
    shown.note_objects()


async def faults_of_the_wire(one: Redlock, two: Redlock, relays: Relays, shown: Shown) -> None:
    """Resets, silence, garbage, refused and hung-up dials."""
    for relay in relays:
        relay.to_client.hold()
    with shown.failing():
        await one("job", wait=0).acquire()
    for relay in relays:
        relay.to_client.release()
        relay.refuse()
        relay.cut()
    await until(lambda: all(node.state is NodeState.DOWN for node in one.nodes))
    with shown.failing():
        await one("job", wait=0).acquire()
    shown.note(one.nodes)
    for relay in relays:
        relay.accept()
    await all_up(one)
    await all_up(two)
    for relay in relays:
        quote_back(relay)
    with shown.failing():
        await one("job", wait=0).acquire()
    assert "what is" in str(shown.errors[-1])
    for relay in relays:
        relay.to_client.rewrite = lambda data: b"?" + data
    with shown.failing():
        await one("job", wait=0).acquire()
    for relay in relays:
        relay.to_server.rewrite = relay.to_client.rewrite = None
    shown.note(one.nodes)
    await all_up(one)


def quote_back(relay: Relay) -> None:
    """A proxy whose errors quote the last request, token included."""
    asked = [b""]

    def remember(data: bytes) -> bytes:
        asked[0] = data
        return data

    relay.to_server.rewrite = remember
    relay.to_client.rewrite = lambda _: (
        b"-ERR what is " + b" ".join(asked[0].split(b"\r\n")[2::2]) + b"\r\n"
    )


async def faults_of_the_server(
    one: Redlock, relays: Relays, servers: Sequence[Server], view: Look, shown: Shown
) -> None:
    """Errors that quote the command's arguments, out of memory, read-only."""
    for unknown in ([b"SET"], [b"DEL", b"EVAL"], [b"EVAL", b"SET", b"DEL"]):
        with shown.failing():
            lease = await one("job", ttl=20).acquire()
            for relay in relays:
                forget(relay, *unknown)
            with shown.failing():
                shown.note(await lease.release())
            with shown.failing():
                await (await one("other", wait=0.05).acquire()).release()
        for relay in relays:
            relay.to_server.rewrite = None
        wipe(view, servers, "job")
        wipe(view, servers, "other")
    for server in servers:
        view(server).config_set(maxmemory=1)
    with shown.failing():
        await one("job", wait=0.05).acquire()
    for server in servers:
        view(server).config_set(maxmemory=0)
        view(server).execute("REPLICAOF", "127.0.0.1", 1)
    with shown.failing():
        await one("job", wait=0.05).acquire()
    for server in servers:
        view(server).execute("REPLICAOF", "NO", "ONE")
    await all_up(one)


async def faults_of_rights(one: Redlock, user: Any, shown: Shown) -> None:
    """NOPERM on everything there is, and a password that is no longer right."""
    lease = await one("job", ttl=20).acquire()
    user.may("-@all")
    with shown.failing():
        shown.note(report := await lease.release(), report.nodes)
    with shown.failing():
        await one("other", wait=0.05).acquire()
    shown.note(await one.inspect("job"))
    user.remove()
    await until(lambda: all("username-password" in node.cause for node in one.nodes))
    with shown.failing():
        await one("job", wait=0.05).acquire()
    shown.note(one.nodes)


class Indiscreet(CredentialProvider):
    """Its errors quote the password."""

    async def get_credentials_async(self) -> tuple[str, str]:
        raise RuntimeError(f"login with {SECRET} failed")


class Discreet(CredentialProvider):
    """Just gives the password out."""

    async def get_credentials_async(self) -> tuple[str, str]:
        return "user", SECRET


async def test_f117_errors_about_the_login_show_no_password(
    servers: Sequence[Server], relays: Relays, shown: Shown
) -> None:
    """Servers and proxies that quote the arguments of AUTH, and providers that quote themselves."""
    for relay in relays:
        forget(relay, b"AUTH")
    at: dict[str, Any] = {"host": "127.0.0.1"}
    given: list[Any] = [
        f"redis://user:{SECRET}@127.0.0.1:{relays[0].port}",
        f"redis://:{SECRET}@127.0.0.1:{relays[1].port}",
        redis.asyncio.Redis(**at, port=relays[2].port, username="user", password=SECRET),
        redis.asyncio.Redis(**at, port=relays[3].port, credential_provider=Discreet()),
        redis.asyncio.Redis(**at, port=relays[4].port, credential_provider=Indiscreet()),
    ]
    async with patient(given) as redlock:
        await until(lambda: all(node.state is NodeState.DOWN for node in redlock.nodes))
        assert 4 == sum("unknown command" in node.cause for node in redlock.nodes)
        assert "RuntimeError" in redlock.nodes[4].cause
        with shown.failing():
            await redlock("job", wait=0).acquire()
        shown.note(redlock.nodes)
        shown.note_objects()
    assert [] == shown.leaks({SECRET})


async def test_f117_what_cannot_be_dialled_shows_no_password(shown: Shown) -> None:
    """Refused, unresolvable: the cause is there, the password isn't."""
    given: list[Any] = [
        f"redis://user:{SECRET}@127.0.0.1:1",
        f"rediss://user:{SECRET}@127.0.0.1:4?ssl_keyfile=/no/such&ssl_password={SECRET}",
        f"redis://127.0.0.1:3/1?password={SECRET}",
        f"unix://user:{SECRET}@/no/such/socket",
        redis.asyncio.Redis(host="127.0.0.1", port=5, db=2, password=SECRET),
    ]
    if LOOP != "uvloop":  # which complains when it is closed while it looks for a name in vain
        given.append(f"redis://user:{SECRET}@no-such-host.invalid")
    async with patient(given, node_timeout=0.05) as redlock:
        await until(lambda: all(node.state is NodeState.DOWN for node in redlock.nodes))
        with shown.failing():
            await redlock("job", wait=0).acquire()
        shown.note(redlock, redlock.nodes)
        shown.note_objects()
        assert all(node.cause for node in redlock.nodes)
    assert 1 == len(shown.errors)
    assert [] == shown.leaks({SECRET})


WRONG_URLS = [
    f"redis://user:{SECRET}@10.0.0.1:no-port",
    f"redis://user:{SECRET}@10.0.0.1/no-db",
    f"redis://user:{SECRET}@10.0.0.1?db=x&socket_timeout=y",
    f"redis://user:{SECRET}@[::1",
    f"redis://user:a/{SECRET}@10.0.0.1",
    f"redis://user:a?{SECRET}@10.0.0.1",
    f"redis://user:{SECRET}?b@10.0.0.1",
    f"redis://user:a#{SECRET}@10.0.0.1",
    f"redis://user:a@{SECRET}@10.0.0.1:x",
    f"redis://:{SECRET}",
    f"redis://user:{SECRET}",
    f"redis:/user:{SECRET}@10.0.0.1",
    f"redis//user:{SECRET}@10.0.0.1",
    f"http://user:{SECRET}@10.0.0.1",
    f"user:{SECRET}@10.0.0.1:6379",
    f"{SECRET}@10.0.0.1",
    f" redis://user:{SECRET}@10.0.0.1",
    f"redis://10.0.0.1?password={SECRET}&protocol=9",
]


@pytest.mark.parametrize("url", WRONG_URLS, ids=lambda url: url.replace(SECRET, "..."))
def test_f117_a_wrong_url_is_refused_without_its_password(shown: Shown, url: str) -> None:
    """Whatever part of it is wrong, what is shown of it has no credentials."""
    with shown.failing():
        shown.note(Redlock([url]))
    with shown.failing():
        shown.note(Redlock([url, url]))
    assert any(isinstance(error, ConfigurationError) for error in shown.errors)
    assert [] == shown.leaks({SECRET})


async def test_f117_one_line_tells_what_each_node_said(pool: ServerPool, view: Look) -> None:
    """Three granted, one dead, foreign, forbidden, late: counts and causes; the same as data."""
    servers = pool.take(Kind.VALKEY9, 7)
    with acl_user([servers[5]], view, "~*", "+@all", "-set") as user, Relays(servers) as relays:
        urls = relays.urls
        urls[5] = user.urls[0]
        async with connected(urls, node_timeout=0.3) as redlock:
            relays[3].refuse()
            relays[3].cut()
            await until(lambda: "111" in redlock.nodes[3].cause)
            plant(view, [servers[4]], "job")
            relays[6].to_client.hold()
            with pytest.raises(LockContended) as caught:
                await redlock("job", wait=0).acquire()
            names = [node.name for node in redlock.nodes]
    error = caught.value
    votes = [*[Vote.GRANTED] * 3, Vote.FAULTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING]
    assert list(zip(names, votes, strict=True)) == [(o.node, o.vote) for o in error.outcomes]
    assert (1, "job") == (error.rounds, error.resource)
    assert 0.3 <= error.elapsed < 5
    assert re.fullmatch(
        r"'job' is held by somebody else: not acquired after \d\.\d{3} s and 1 round: "
        r"3 of 7 granted, 1 denied, 3 unreachable \(127\.0\.0\.1:\d+: Error 111 [^;]*; "
        r"127\.0\.0\.1:\d+: NOPERM [^;]*; 127\.0\.0\.1:\d+: no answer in time\)",
        str(error),
    ), str(error)
    assert "object at 0x" not in repr(error)


async def test_f117_a_lost_lease_says_why(servers3: Sequence[Server], view: Look) -> None:
    """By vote: how many said what; the error and the note on the body's own error agree."""
    async with connected(urls_of(servers3)) as redlock:
        lease = await redlock("job", ttl=20).acquire()
        await heard(lease)
        wipe(view, servers3[:2], "job")
        with pytest.raises(LeaseError, match=r"lease of 'job': .* 2 denied") as caught:
            await lease.extend()
        assert "job" == caught.value.resource
        assert "object at 0x" not in repr(caught.value)
        await lease.release()
