"""PURE: what is asked of a server once per connection, and what follows from its answers.

redis-py has authenticated and selected the database by then, in RESP2. Everything here is optional: a
user without the right to HELLO, INFO or CLIENT still locks, only less is known of the server. The
commands leave in one write and are answered in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import hiredis

from aioredlock2._node import Request, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.dialect import Command, Dialect, Form
from aioredlock2.errors import printable

__all__ = ["Greeting", "greeting_commands", "introductions", "read_greeting"]

RENEW_PROBES = (dialect.SET_IFEQ,)
REVOKE_PROBES = (dialect.DELEX, dialect.DELIFEQ)
INFO = 2
_HEAD = 3
"""HELLO, CLIENT SETINFO and INFO come first; the probes follow."""


@dataclass(frozen=True, slots=True)
class Greeting:
    """What one connection's server turned out to be."""

    server: str
    """Kind and version, like "valkey 9.1.2"."""
    run_id: str | None
    """New at every start of a server; None where INFO is refused."""
    memory_id: str | None
    """Run id and replication id: another one means that the keys may be other ones. A demotion or
    promotion changes it, although the process goes on."""
    uptime: int | None
    """Whole seconds by the server's wall clock: may lie, may be negative."""
    refused: str
    """Why too little is known of it to let it vote: it wants a password, or can't answer just now.
    Empty if all is well; a user who may not ask INFO is no such reason."""
    unfit: str
    """Why this server must not vote, or an empty string."""
    evicts: str
    """The policy by which it may drop lock keys at maxmemory, or an empty string."""
    dialect: Dialect


def greeting_commands(probe_key: bytes, token: bytes) -> list[bytes]:
    """The commands to send. `probe_key` is one that no lock can have; nothing is written to it."""
    head: list[Command] = [
        (b"HELLO", 3),
        (b"CLIENT", b"SETINFO", b"LIB-NAME", b"aioredlock2"),
        (b"INFO",),
    ]
    probes = [
        dialect.probe_command(form, probe_key, token) for form in RENEW_PROBES + REVOKE_PROBES
    ]
    return [dialect.pack_words(command) for command in head] + probes


def introductions(spoken: Dialect, probe_key: bytes, token: bytes) -> list[bytes]:
    """The scripts that this dialect renews and revokes by, run to no effect: so they are known there.

    Otherwise the first request of each kind would be refused and put again behind those asked since.
    """
    return [
        dialect.pack(dialect.FORMS[verb][-1], Request(verb, probe_key, token, ttl_ms=1))
        for verb in (Verb.RENEW, Verb.REVOKE)
        if spoken.preferred[verb].name == "EVALSHA"
    ]


def read_greeting(replies: Sequence[object]) -> Greeting:
    """The conclusions from the replies to `greeting_commands`, in the same order."""
    hello = _fields_of_hello(replies[0])
    info = _fields_of_info(replies[INFO])
    probed = dict(zip(RENEW_PROBES + REVOKE_PROBES, replies[_HEAD:], strict=True))
    kind = "valkey" if "valkey_version" in info or hello.get("server") == "valkey" else "redis"
    version = info.get(f"{kind}_version") or hello.get("version", "")
    return Greeting(
        server=f"{kind} {version}".strip(),
        run_id=info.get("run_id"),
        memory_id=f"{info['run_id']} {info.get('master_replid')}" if "run_id" in info else None,
        uptime=_whole(info.get("uptime_in_seconds", "")),
        refused=_refused(replies),
        unfit=_unfit(info, hello),
        evicts=_eviction_policy(info),
        dialect=Dialect(
            {
                Verb.RENEW: _first_usable(RENEW_PROBES, probed, dialect.RENEW_EVALSHA),
                Verb.REVOKE: _first_usable(REVOKE_PROBES, probed, dialect.REVOKE_EVALSHA),
            }
        ),
    )


def _first_usable(forms: Sequence[Form], probed: dict[Form, object], otherwise: Form) -> Form:
    """The first form that was not refused; any other answer, an error too, shows that it exists."""
    for form in forms:
        reply = probed[form]
        if not isinstance(reply, hiredis.ReplyError):
            return form
        if dialect.refusal_of(form, str(reply)) is not dialect.Refusal.FOR_GOOD:
            return form
    return otherwise


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _refused(replies: Sequence[object]) -> str:
    errors = [str(reply) for reply in replies if isinstance(reply, hiredis.ReplyError)]
    if any(error.startswith("NOAUTH") for error in errors):
        return "the server wants a password"
    info = replies[INFO]
    if not isinstance(info, hiredis.ReplyError):
        return ""
    # Without INFO there is no restart guard: that is for those to accept who may not ask for it,
    # not for a server that is busy at the moment.
    text = str(info)
    return "" if text.startswith(("NOPERM", "ERR unknown command")) else f"INFO is refused: {text}"


def _whole(text: str) -> int | None:
    try:
        return int(text)
    except ValueError:
        return None


def _fields_of_hello(reply: object) -> dict[str, str]:
    if not isinstance(reply, dict):
        return {}
    return {_text(name): printable(_text(value)) for name, value in reply.items()}


def _fields_of_info(reply: object) -> dict[str, str]:
    if not isinstance(reply, bytes):
        return {}
    lines = (line.partition(":") for line in _text(reply).splitlines())
    return {name: printable(value) for name, colon, value in lines if colon}


def _unfit(info: dict[str, str], hello: dict[str, str]) -> str:
    modes = {hello.get("mode"), info.get("redis_mode"), info.get("server_mode")}
    if "sentinel" in modes:
        return "is a Sentinel, which holds no keys: give Sentinel(...).master_for(...)"
    if "cluster" in modes or info.get("cluster_enabled") == "1":
        return "cluster node given as independent node"
    role = info.get("role") or hello.get("role", "master")
    return "" if role == "master" else f"is a {role}, only masters vote"


def _eviction_policy(info: dict[str, str]) -> str:
    policy = info.get("maxmemory_policy", "noeviction")
    return "" if policy == "noeviction" or info.get("maxmemory", "0") == "0" else policy
