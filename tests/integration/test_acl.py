"""Users of limited rights: whatever is left to them is used, and nothing else is asked for long."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import pytest
from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, ResponseError

from aioredlock2 import LeaseLost, QuorumUnreachable, ReleaseReport, Removal, Vote
from aioredlock2.embedded import Server
from tests.support.acl import PASSWORD, acl_user
from tests.support.clients import patient
from tests.support.facts import all_up, deleted, heard, states
from tests.support.fleet import Look
from tests.support.logs import ours
from tests.support.polling import until
from tests.support.pool import ServerPool
from tests.support.servers import Kind

DOCUMENTED = Path(__file__).parents[2] / "docs" / "howto" / "nodes.md"
ACL = "ACL SETUSER"
KEY = b"redlock:job"
KEYS = "~redlock:*"
SCRIPTS = ("+eval", "+evalsha", "+get", "+del", "+pexpire")
LEAST = {
    Kind.VALKEY9: ("+set", "+delifeq"),
    Kind.REDIS8: ("+set", "+delex"),
    Kind.VALKEY8: ("+set", *SCRIPTS),
    Kind.REDIS62: ("+set", *SCRIPTS),
}
NATIVE = {Kind.VALKEY9: "-delifeq", Kind.REDIS8: "-delex"}
native_kinds = pytest.mark.parametrize("kind", list(NATIVE), ids=lambda kind: kind.label)


def scripts_asked(view: Look, servers: Sequence[Server]) -> int:
    """How often anybody has tried to run a script, refused or not."""
    stats = [view(server).commandstats() for server in servers]
    return sum(each.get(name, 0) for each in stats for name in ("eval", "evalsha"))


def acl_log(view: Look, servers: Sequence[Server]) -> list[dict[str, str]]:
    """What the servers have refused to anybody."""
    entries = []
    for words in [entry for server in servers for entry in view(server).acl("LOG")]:
        texts = [word.decode() if isinstance(word, bytes) else str(word) for word in words]
        entries.append(dict(zip(texts[::2], texts[1::2], strict=True)))
    return entries


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in ours(caplog) if r.levelno >= logging.WARNING]


async def test_f103_the_least_rights_suffice(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """Without HELLO, CLIENT, INFO, CONFIG and COMMAND a user locks, extends and releases."""
    with acl_user(any_servers3, view, KEYS, "-@all", *LEAST[any_kind]) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            lease = await redlock("job", ttl=20).acquire()
            await heard(lease)
            await lease.extend(30)
            await heard(lease)
            assert all(view(server).pttl(KEY) > 20_000 for server in any_servers3)
            await deleted(await lease.release())
    assert [] == warnings_in(caplog)


async def test_the_documented_rights_are_enough(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """The lines of docs/howto/nodes.md as they stand there: no server refuses anything."""
    with acl_user(any_servers3, view, *documented_rights(any_kind)) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            for fenced in (False, True):
                lease = await redlock("job", fenced=fenced).acquire()
                await lease.extend()
                await heard(lease)
                assert (await redlock.inspect("job")).holder == lease.digest
                await deleted(await lease.release())
                await lease.release()
        assert [] == acl_log(view, any_servers3)
    assert [] == warnings_in(caplog)


def documented_rights(kind: Kind) -> list[str]:
    """The rules for locks and fences, without the user's name and password."""
    lines = [line.split()[2:] for line in DOCUMENTED.read_text().splitlines() if ACL in line]
    redis, valkey, others, fences = [[word for word in line if word != "locks"] for line in lines]
    return [*{Kind.REDIS8: redis, Kind.VALKEY9: valkey}.get(kind, others)[2:], *fences]


FORBIDDEN = [
    "GET other",
    "SET other x",
    "SET redlock x",
    "INCR {other}:fence",
    "KEYS *",
    "SCAN 0",
    "FLUSHALL",
    "CONFIG GET *",
    "CLIENT LIST",
    "SCRIPT FLUSH",
    "ACL WHOAMI",
    "PUBLISH redlock:job x",
    "MONITOR",
    "REPLICAOF NO ONE",
    "SHUTDOWN NOSAVE",
]


async def test_the_documented_rights_allow_nothing_else(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look
) -> None:
    """Other keys, other users, the server itself: out of reach, by script as well."""
    with acl_user(any_servers3, view, *documented_rights(any_kind)) as user:
        async with Redis.from_url(user.urls[0], single_connection_client=True) as connection:
            ask: Callable[..., Awaitable[object]] = connection.execute_command
            for command in FORBIDDEN:
                with pytest.raises(NoPermissionError):
                    await ask(*command.split())
                words = ", ".join(f"'{word}'" for word in command.split())
                with pytest.raises(ResponseError):
                    await ask("EVAL", f"return redis.call({words})", 0)


async def test_f103_without_info_the_restart_guard_says_once_that_it_is_blind(
    servers3: Sequence[Server], view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """The node votes; one warning per node, also when it is dialled again."""
    with acl_user(servers3, view, KEYS, "-@all", *LEAST[Kind.VALKEY9]) as user:
        async with patient(user.urls, restart_guard=True) as redlock:
            for _ in range(2):
                await all_up(redlock)
                await (await redlock("job").acquire()).release()
                user.remove()
                await until(lambda: "up" not in {state.value for state in states(redlock)})
                user.may("reset", "on", f">{PASSWORD}", KEYS, *LEAST[Kind.VALKEY9])
            await all_up(redlock)
        blind = [text for text in warnings_in(caplog) if "restart guard can't work" in text]
        assert 3 == len(blind) == len(set(blind))


@pytest.mark.parametrize("denied", ["-hello", "-info", "-client", "-config", "-command"])
async def test_f103_each_extra_may_be_refused_on_its_own(
    any_servers3: Sequence[Server],
    any_kind: Kind,
    view: Look,
    caplog: pytest.LogCaptureFixture,
    denied: str,
) -> None:
    """What the others tell is still used, such as the server's kind."""
    with acl_user(any_servers3, view, KEYS, "+@all", denied) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            await deleted(await (await redlock("job").acquire()).release())
            kind = any_kind.label.rstrip("0123456789")
            assert all(node.server.startswith(f"{kind} ") for node in redlock.nodes)
    assert [] == warnings_in(caplog)


@native_kinds
async def test_f107_with_native_commands_no_script_is_ever_sent(
    pool: ServerPool, view: Look, kind: Kind
) -> None:
    """A policy against scripts is never even tried, not at the connection's start either."""
    servers = pool.take(kind, 3)
    with acl_user(servers, view, KEYS, "+@all", "-@scripting") as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            for _ in range(5):
                lease = await redlock("job").acquire()
                await heard(lease)
                await lease.extend()
                await heard(lease)
                await deleted(await lease.release())
        assert 0 == scripts_asked(view, servers)
        assert [] == [entry for entry in acl_log(view, servers) if entry["reason"] == "command"]


@native_kinds
async def test_f107_without_the_native_command_the_script_does_it(
    pool: ServerPool, view: Look, kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    """NOPERM on DELEX or DELIFEQ is found at connect; it costs no lock an extra round trip."""
    servers = pool.take(kind, 3)
    with acl_user(servers, view, KEYS, "+@all", NATIVE[kind]) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            assert [("EVALSHA", "SET IFEQ")] * 3 == [node.commands for node in redlock.nodes]
            for server in servers:
                view(server).reset_commandstats()
            for _ in range(5):
                await deleted(await (await redlock("job").acquire()).release())
            refused = NATIVE[kind].removeprefix("-")
            assert not any(refused in view(server).commandstats() for server in servers)
    assert [] == warnings_in(caplog)


async def test_f107_with_neither_the_key_expires_and_one_warning_says_so(
    any_servers3: Sequence[Server], any_kind: Kind, view: Look, caplog: pytest.LogCaptureFixture
) -> None:
    """The release reports the refusal, the key keeps its ttl; once per node, not once per lock."""
    rules = [KEYS, "+@all", "-@scripting", *filter(None, [NATIVE.get(any_kind)])]
    with acl_user(any_servers3, view, *rules) as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            for index in range(5):
                lease = await redlock(f"job{index}", ttl=20).acquire()
                await heard(lease)
                report = await lease.release()
                await until(lambda report=report: _all_refused(report))  # type: ignore[misc]
                assert report.outcome == "unknown"
                assert all("NOPERM" in node.cause for node in report.nodes)
                assert lease.is_released
            assert all(0 < view(s).pttl(b"redlock:job0") <= 20_000 for s in any_servers3)
        revoking = [text for text in warnings_in(caplog) if "revoke" in text]
        assert 3 == len(revoking) == len(set(revoking))


def _all_refused(report: ReleaseReport) -> bool:
    return {node.removal for node in report.nodes} == {Removal.UNREACHABLE}


async def test_f107_no_command_to_extend_is_no_answer_not_a_refusal(
    pool: ServerPool, view: Look
) -> None:
    """Redis 6.2 without scripting: the lease stands until its validity is over, then it is lost."""
    servers = pool.take(Kind.REDIS62, 3)
    with acl_user(servers, view, KEYS, "+@all", "-@scripting") as user:
        async with patient(user.urls, node_timeout=0.1) as redlock:
            await all_up(redlock)
            lease = await redlock("job", ttl=0.8).acquire()
            deadline = lease.valid_until
            with pytest.raises(LeaseLost, match="validity ended"):
                await lease.extend()
            assert deadline == lease.valid_until
            assert lease.is_lost
            await until(lambda: not any(view(server).keys() for server in servers))
            await lease.release()


@native_kinds
async def test_f107_h45_rights_taken_and_given_at_run_time(
    pool: ServerPool, view: Look, kind: Kind
) -> None:
    """The native command goes, then scripting goes and it comes back: same round, same connection."""
    servers = pool.take(kind, 3)
    off = NATIVE[kind]
    on = off.replace("-", "+")
    native = on.removeprefix("+").upper()
    with acl_user(servers, view, KEYS, "+@all") as user:
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            ids = [[c["id"] for c in each] for each in user.connections()]
            for rules, expected in [
                ((off,), "EVALSHA"),
                ((on, "-@scripting"), native),
                ((off, "+@scripting"), "EVALSHA"),
                ((on, "-@scripting"), native),
            ]:
                lease = await redlock("job").acquire()
                await heard(lease)
                user.may(*rules)
                await deleted(await lease.release())
                assert [expected] * 3 == [node.commands[0] for node in redlock.nodes]  # type: ignore[index]
            assert ids == [[c["id"] for c in each] for each in user.connections()]


async def test_f107_scripting_taken_for_a_while_loses_no_lease(
    pool: ServerPool, view: Look
) -> None:
    """Redis 6.2 extends by script only; refused for a while, it goes on when it is allowed again."""
    servers = pool.take(Kind.REDIS62, 3)
    with acl_user(servers, view, KEYS, "+@all") as user:
        async with (
            patient(user.urls, node_timeout=0.2) as redlock,
            redlock("job", ttl=2) as lease,
        ):
            user.may("-@scripting")
            await until(lambda: scripts_asked(view, servers) > 9)
            before = lease.valid_until
            user.may("+@scripting")
            await until(lambda: lease.valid_until > before)
            assert lease.is_held


@native_kinds
async def test_f107_at_maxmemory_without_scripting_an_extension_gets_no_answer(
    pool: ServerPool, view: Look, kind: Kind
) -> None:
    """SET IFEQ is refused for memory, the script by policy: held until its deadline, given back."""
    servers = pool.take(kind, 3)
    with acl_user(servers, view, KEYS, "+@all", "-@scripting") as user:
        async with patient(user.urls, node_timeout=0.1) as redlock:
            await all_up(redlock)
            lease = await redlock("job", ttl=20).acquire()
            while any(outcome.vote is not Vote.GRANTED for outcome in lease.votes):
                await lease.extend()  # a node that was slow to answer is asked again
            brief = await redlock("brief", ttl=0.8).acquire()
            for server in servers:
                view(server).config_set(maxmemory=1)
            with pytest.raises(LeaseLost, match="validity ended"):
                await brief.extend()
            assert lease.is_held
            for server in servers:
                view(server).config_set(maxmemory=0)
            await lease.extend()
            for server in servers:
                view(server).config_set(maxmemory=1)
            await deleted(await lease.release())
            await brief.release()


async def test_a_user_without_set_on_a_minority_is_invisible(
    servers3: Sequence[Server], view: Look
) -> None:
    """NOPERM is no vote of that node, and shown there; it is never "held by somebody else"."""
    with acl_user(servers3, view, KEYS, "+@all") as user:
        user.may("-set", on=[0])
        async with patient(user.urls) as redlock:
            await all_up(redlock)
            lease = await redlock("job", wait=0).acquire()
            await heard(lease, 2)
            await until(lambda: "NOPERM" in lease.votes[0].cause)
            await lease.release()
            user.may("-set", on=[1])
            with pytest.raises(QuorumUnreachable, match=r"2 unreachable \(.*NOPERM"):
                await redlock("job", wait=0).acquire()
            with pytest.raises(QuorumUnreachable):
                await redlock("job").try_acquire()
            user.may("+set")
            await (await redlock("job", wait=0).acquire()).release()


async def test_f108_no_key_outside_the_prefix_is_touched(
    any_servers3: Sequence[Server], view: Look
) -> None:
    """With rights to ~app:lock:* alone nothing is refused for its key, whatever the client does."""
    servers = any_servers3
    with acl_user(servers, view, "~app:lock:*", "+@all") as user:
        async with patient(user.urls, prefix="app:lock:") as redlock:
            await all_up(redlock)
            async with redlock("job") as lease:
                await heard(lease)
                await lease.extend()
                assert await redlock.is_locked("job")
                assert (await redlock.inspect("job")).holder == lease.digest
            async with patient(user.urls, prefix="app:lock:") as rival, redlock("job"):
                assert await rival("job").try_acquire() is None
            kept = await redlock("other").acquire()
        assert kept.is_released
        assert [] == [entry for entry in acl_log(view, servers) if entry["reason"] != "command"]


async def test_f108_no_channel_is_used(servers3: Sequence[Server], view: Look) -> None:
    """Nothing is published or subscribed: a user without any channel notices nothing."""
    with acl_user(servers3, view, KEYS, "+@all", "resetchannels") as user:
        async with patient(user.urls) as redlock, redlock("job"):
            assert [] == view(servers3[0]).execute("PUBSUB", "CHANNELS")
        stats = Counter[str]()
        for server in servers3:
            stats.update(view(server).commandstats())
        assert not {"publish", "spublish", "subscribe", "psubscribe", "ssubscribe"} & set(stats)


async def test_h45_a_deleted_user_is_an_outage_and_comes_back(
    servers3: Sequence[Server], view: Look
) -> None:
    """DELUSER closes the connections; a held lease lives on if the user is back in time."""
    with acl_user(servers3, view, KEYS, "+@all") as user:
        async with (
            patient(user.urls, node_timeout=0.2) as redlock,
            redlock("job", ttl=3) as lease,
        ):
            await all_up(redlock)
            user.remove()
            await until(lambda: all("invalid username" in node.cause for node in redlock.nodes))
            assert PASSWORD not in str(redlock.nodes)
            before = lease.valid_until
            user.may("reset", "on", f">{PASSWORD}", KEYS, "+@all")
            await until(lambda: lease.valid_until > before)
            assert lease.is_held
