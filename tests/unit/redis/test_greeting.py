"""What a connection asks of its server first, and what it concludes from any mix of answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._node import Verb
from aioredlock2._redis import dialect, scripts
from aioredlock2._redis.dialect import Form
from aioredlock2._redis.greeting import (
    Greeting,
    greeting_commands,
    introductions,
    read_greeting,
)

UNKNOWN = hiredis.ReplyError("ERR unknown command 'X', with args beginning with: ")
SYNTAX = hiredis.ReplyError("ERR syntax error")
NOPERM = hiredis.ReplyError("NOPERM this user has no permissions to run the command")
OOM = hiredis.ReplyError("OOM command not allowed when used memory > 'maxmemory'.")
LOADING = hiredis.ReplyError("LOADING Redis is loading the dataset in memory")

HELLO = {b"server": b"valkey", b"version": b"9.1.2", b"proto": 3, b"mode": b"standalone"}
INFO = (
    b"# Server\r\nredis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:9.1.2\r\n"
    b"redis_mode:standalone\r\nrun_id:aaaa\r\nuptime_in_seconds:77\r\n"
    b"# Memory\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n"
    b"# Replication\r\nrole:master\r\n# Cluster\r\ncluster_enabled:0\r\n"
)


def greet(
    hello: object = HELLO,
    info: object = INFO,
    probes: Sequence[object] = (None, UNKNOWN, 0),
    setinfo: object = b"OK",
) -> Greeting:
    """By default a Valkey 9: SET IFEQ and DELIFEQ, no DELEX."""
    return read_greeting([hello, setinfo, info, *probes])


def info(**changes: object) -> bytes:
    """INFO with other values."""
    lines = [line.partition(b":") for line in INFO.splitlines() if b":" in line]
    fields = {name.decode(): value for name, _, value in lines}
    fields.update({name: str(value).encode() for name, value in changes.items()})
    return b"".join(b"%s:%s\r\n" % (name.encode(), value) for name, value in fields.items())


# --- asking -------------------------------------------------------------------------------------


def test_the_probes_touch_the_probe_key_only() -> None:
    token = b"0123456789abcdef0123456789abcdef"
    commands = greeting_commands(b"redlock:", token)
    heads = [command.split(b"\r\n")[2] for command in commands]
    assert heads == [b"HELLO", b"CLIENT", b"INFO", b"SET", b"DELEX", b"DELIFEQ"]
    for probe in commands[3:]:
        assert b"\r\n$8\r\nredlock:\r\n" in probe
        assert token in probe


@pytest.mark.parametrize(
    ("probes", "introduced"),
    [
        ((None, UNKNOWN, 0), []),
        ((None, UNKNOWN, UNKNOWN), [scripts.REVOKE]),
        (
            (SYNTAX, UNKNOWN, UNKNOWN),
            [scripts.RENEW, scripts.REVOKE],
        ),
    ],
)
def test_f105_the_scripts_that_will_be_used_are_introduced(
    probes: Sequence[object], introduced: Sequence[scripts.Script]
) -> None:
    """By their text, on the key that no lock can have."""
    token = b"0123456789abcdef0123456789abcdef"
    commands = introductions(greet(probes=probes).dialect, b"redlock:", token)
    for script, command in zip(introduced, commands, strict=True):
        assert script.text in command
        assert b"\r\n$8\r\nredlock:\r\n" in command


def test_f109_the_probes_could_not_delete_or_set_a_lock() -> None:
    """Each compares with a token that nobody has, and SET has IFEQ and PX."""
    probes = greeting_commands(b"redlock:", b"t" * 32)[3:]
    assert b"IFEQ" in probes[0]
    assert b"PX" in probes[0]
    assert b"IFEQ" in probes[1]


# --- concluding ---------------------------------------------------------------------------------


def test_a_whole_greeting() -> None:
    found = greet()
    assert (found.server, found.run_id, found.uptime) == ("valkey 9.1.2", "aaaa", 77)
    assert (found.unfit, found.evicts) == ("", "")
    assert found.dialect.commands == ("DELIFEQ", "SET IFEQ")


@pytest.mark.parametrize(
    ("hello", "info_reply", "server"),
    [
        (HELLO, INFO, "valkey 9.1.2"),
        ({b"server": b"redis", b"version": b"8.10.2"}, b"redis_version:8.10.2\r\n", "redis 8.10.2"),
        (UNKNOWN, b"redis_version:6.2.14\r\n", "redis 6.2.14"),
        (HELLO, NOPERM, "valkey 9.1.2"),
        ({"server": "valkey", "version": "8.1"}, NOPERM, "valkey 8.1"),
        (NOPERM, NOPERM, "redis"),
        (NOPERM, b"valkey_version:9.0.0\r\nredis_version:7.2.4\r\n", "valkey 9.0.0"),
    ],
)
def test_the_kind_of_server_is_told_by_whatever_is_allowed(
    hello: object, info_reply: object, server: str
) -> None:
    assert greet(hello, info_reply).server == server


def test_f103_a_user_who_may_ask_nothing_still_votes() -> None:
    found = greet(NOPERM, NOPERM, (NOPERM, NOPERM, NOPERM), setinfo=NOPERM)
    assert (found.unfit, found.evicts, found.run_id, found.uptime) == ("", "", None, None)
    assert found.dialect.commands == ("EVALSHA", "EVALSHA")


@pytest.mark.parametrize(
    ("probes", "revoke", "renew"),
    [
        ((None, 0, UNKNOWN), "DELEX", "SET IFEQ"),
        ((None, UNKNOWN, 0), "DELIFEQ", "SET IFEQ"),
        ((None, UNKNOWN, UNKNOWN), "EVALSHA", "SET IFEQ"),
        ((SYNTAX, UNKNOWN, UNKNOWN), "EVALSHA", "EVALSHA"),
        ((None, NOPERM, 0), "DELIFEQ", "SET IFEQ"),
        ((NOPERM, NOPERM, NOPERM), "EVALSHA", "EVALSHA"),
        ((OOM, 0, UNKNOWN), "DELEX", "SET IFEQ"),
        ((LOADING, LOADING, LOADING), "DELEX", "SET IFEQ"),
    ],
)
def test_the_dialect_is_what_the_probes_show(
    probes: Sequence[object], revoke: str, renew: str
) -> None:
    """An answer of any kind but a refusal shows that the command is there."""
    assert greet(probes=probes).dialect.commands == (revoke, renew)


@pytest.mark.parametrize(
    ("hello", "info_reply", "unfit"),
    [
        (HELLO, INFO, ""),
        (HELLO, info(role="slave"), "is a slave, only masters vote"),
        (NOPERM, info(role="slave"), "is a slave, only masters vote"),
        (HELLO | {b"role": b"replica"}, NOPERM, "is a replica, only masters vote"),
        (HELLO | {b"role": b"master"}, NOPERM, ""),
        (HELLO, info(role="sentinel"), "is a sentinel, only masters vote"),
        (HELLO, info(cluster_enabled=1), "cluster node given as independent node"),
        (HELLO, info(redis_mode="cluster"), "cluster node given as independent node"),
        (HELLO, info(server_mode="cluster"), "cluster node given as independent node"),
        (HELLO | {b"mode": b"cluster"}, NOPERM, "cluster node given as independent node"),
    ],
)
def test_f029_a_server_that_must_not_vote_is_told_by_whatever_is_allowed(
    hello: object, info_reply: object, unfit: str
) -> None:
    assert greet(hello, info_reply).unfit == unfit


@pytest.mark.parametrize(
    ("changes", "evicts"),
    [
        ({}, ""),
        ({"maxmemory": 100, "maxmemory_policy": "noeviction"}, ""),
        ({"maxmemory": 0, "maxmemory_policy": "allkeys-lru"}, ""),
        ({"maxmemory": 100, "maxmemory_policy": "allkeys-lru"}, "allkeys-lru"),
        ({"maxmemory": 100, "maxmemory_policy": "volatile-ttl"}, "volatile-ttl"),
    ],
)
def test_f061_eviction_is_a_danger_only_with_a_memory_limit(
    changes: dict[str, Any], evicts: str
) -> None:
    assert greet(HELLO, info(**changes)).evicts == evicts


@pytest.mark.parametrize(
    ("told", "uptime"), [("0", 0), ("-3600", -3600), ("", None), ("soon", None), ("1.5", None)]
)
def test_an_uptime_is_taken_as_told_or_not_at_all(told: str, uptime: int | None) -> None:
    assert greet(HELLO, info(uptime_in_seconds=told)).uptime == uptime


SENTINEL = "is a Sentinel, which holds no keys: give Sentinel(...).master_for(...)"


@pytest.mark.parametrize(
    ("hello", "info_reply"),
    [(HELLO | {b"mode": b"sentinel"}, NOPERM), (HELLO, info(redis_mode="sentinel"))],
)
def test_a_sentinel_is_no_node_and_the_text_says_what_to_give(
    hello: object, info_reply: object
) -> None:
    assert greet(hello, info_reply).unfit == SENTINEL


NOAUTH = hiredis.ReplyError("NOAUTH Authentication required.")


@pytest.mark.parametrize(
    ("hello", "info_reply", "refused"),
    [
        (HELLO, INFO, ""),
        (NOPERM, INFO, ""),
        (HELLO, NOPERM, ""),
        (HELLO, UNKNOWN, ""),
        (NOAUTH, INFO, "the server wants a password"),
        (HELLO, NOAUTH, "the server wants a password"),
        (HELLO, LOADING, f"INFO is refused: {LOADING}"),
    ],
)
def test_f030_a_server_that_only_now_says_nothing_is_asked_again_later(
    hello: object, info_reply: object, refused: str
) -> None:
    """Who may not ask for INFO does without a restart guard; a busy server is no such case."""
    assert greet(hello, info_reply).refused == refused


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.binary(max_size=30),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.binary(max_size=5), st.integers(), max_size=3),
    st.sampled_from([UNKNOWN, SYNTAX, NOPERM, OOM, LOADING, HELLO, INFO]),
)


@given(st.lists(VALUES, min_size=6, max_size=6))
def test_f103_no_answer_is_too_odd_to_be_read(replies: list[object]) -> None:
    found = read_greeting(replies)
    forms: list[Form] = [found.dialect.preferred[verb] for verb in (Verb.REVOKE, Verb.RENEW)]
    assert forms[0] in dialect.FORMS[Verb.REVOKE]
    assert forms[1] in dialect.FORMS[Verb.RENEW]
