"""Fenced grants and confirmations: several commands each, and what their answers say together."""

from __future__ import annotations

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.fence import FENCE_MAX, LIFETIME_S
from aioredlock2._node import Request, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.dialect import FORMS, Dialect, Form, Refusal
from aioredlock2.outcomes import Vote

KEY, COUNTER = b"redlock:x", b"{redlock:x}:fence"
TOKEN = b"0123456789abcdef0123456789abcdef"
SEED, GAP, TTL_MS = 1_900_000_000_000_000, 7, 1500
LIFE = b"%d" % (LIFETIME_S * 1000)
Q, OK = b"QUEUED", b"OK"
F = Vote.FAULTED
NOT_A_NUMBER = "ERR value is not an integer or out of range"
FENCING = [(verb, form) for verb in (Verb.GRANT_FENCED, Verb.CONFIRM) for form in FORMS[verb]]


def request_of(verb: Verb, key: bytes = KEY) -> Request:
    request = Request(verb, key, TOKEN, TTL_MS)
    request.fence, request.gap = SEED, GAP
    return request


def commands(form: Form, verb: Verb, key: bytes = KEY) -> list[list[bytes]]:
    """What a server reads of a request."""
    reader = hiredis.Reader()
    reader.feed(dialect.pack(form, request_of(verb, key)))
    read: list[list[bytes]] = []
    while (command := reader.gets()) is not False:
        read.append(command)
    return read


def doubtful(answer: object) -> bool:
    """Whether it is a fault that speaks against the whole connection."""
    return isinstance(answer, tuple) and answer[0] is F and isinstance(answer[1], dialect.Doubt)


def error(text: str) -> hiredis.ReplyError:
    return hiredis.ReplyError(text)


def grant(*parts: Any) -> object:
    return dialect.read(dialect.FENCED, request_of(Verb.GRANT_FENCED), list(parts))


def confirmation(*parts: Any) -> object:
    return dialect.read(dialect.CONFIRM, request_of(Verb.CONFIRM), list(parts))


# --- words --------------------------------------------------------------------------------------


def test_a_fenced_grant_is_a_transaction_of_one_write() -> None:
    seed = b"%d" % SEED
    assert commands(dialect.FENCED, Verb.GRANT_FENCED) == [
        [b"MULTI"],
        [b"SET", COUNTER, seed, b"NX", b"PX", LIFE],
        [b"SET", KEY, TOKEN, b"NX", b"PX", b"1500"],
        [b"INCR", COUNTER],
        [b"EXEC"],
    ]


def test_a_confirmation_can_only_raise_the_counter() -> None:
    """Where it is forgotten it comes to just the fence; only the lock's own holder restarts the ttl."""
    assert commands(dialect.CONFIRM, Verb.CONFIRM) == [
        [b"MULTI"],
        [b"SET", COUNTER, b"%d" % (SEED - GAP), b"NX", b"PX", LIFE],
        [b"SET", KEY, TOKEN, b"IFEQ", TOKEN, b"PX", b"1500"],
        [b"INCRBY", COUNTER, b"7"],
        [b"PEXPIRE", COUNTER, LIFE],
        [b"EXEC"],
    ]


@pytest.mark.parametrize("form", [dialect.FENCED_EVALSHA, dialect.FENCED_EVAL])
def test_a_script_gets_both_keys_declared(form: Form) -> None:
    (command,) = commands(form, Verb.GRANT_FENCED)
    assert command[2:] == [b"2", KEY, COUNTER, TOKEN, b"%d" % SEED, LIFE, b"1500"]


@pytest.mark.parametrize(("verb", "form"), FENCING)
def test_as_many_replies_are_expected_as_commands_are_sent(verb: Verb, form: Form) -> None:
    assert len(commands(form, verb)) == form.replies


@given(st.binary(min_size=1, max_size=40))
def test_f110_the_fence_key_of_any_name_is_another_key_in_its_slot(name: bytes) -> None:
    counter = dialect.fence_key(name)
    assert counter != name
    assert counter.startswith(b"{" + name + b"}")
    for verb, form in FENCING:
        assert any(counter in command for command in commands(form, verb, name))


def test_who_has_no_conditional_set_is_asked_by_script() -> None:
    native = Dialect({Verb.RENEW: dialect.SET_IFEQ})
    assert native.preferred[Verb.GRANT_FENCED] is dialect.FENCED
    assert native.preferred[Verb.CONFIRM] is dialect.CONFIRM
    scripted = Dialect({Verb.RENEW: dialect.RENEW_EVALSHA})
    assert scripted.preferred[Verb.GRANT_FENCED] is dialect.FENCED_EVAL
    scripted.prefer(Verb.GRANT_FENCED, dialect.FENCED_EVAL)
    assert scripted.preferred[Verb.GRANT_FENCED] is dialect.FENCED_EVALSHA
    assert scripted.preferred[Verb.CONFIRM] is dialect.CONFIRM_EVALSHA


# --- answers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seeded", [OK, None])
def test_a_granted_vote_brings_the_counter(seeded: bytes | None) -> None:
    assert grant(OK, Q, Q, Q, [seeded, OK, 41]) == (Vote.GRANTED, 41)
    assert grant(OK, Q, Q, Q, [seeded, None, 41]) == (Vote.DENIED, None)


def test_by_script_the_counter_is_the_reply() -> None:
    request = request_of(Verb.GRANT_FENCED)
    assert dialect.read(dialect.FENCED_EVAL, request, SEED + 41) == (Vote.GRANTED, SEED + 41)
    assert dialect.read(dialect.FENCED_EVAL, request, None) == (Vote.DENIED, None)
    for other in (b"41", 41, 1, 0, -1, True):
        assert doubtful(dialect.read(dialect.FENCED_EVAL, request, other)), other


def test_a_confirmation_is_granted_where_the_key_is_still_mine() -> None:
    assert confirmation(OK, Q, Q, Q, Q, [None, OK, 41, 1]) == (Vote.GRANTED, None)
    assert confirmation(OK, Q, Q, Q, Q, [OK, None, 41, 1]) == (Vote.DENIED, None)


def test_a_counter_that_is_no_number_is_a_fault_and_no_refusal() -> None:
    """The key is ours then: a node that "denied" would not be cleaned up."""
    cause = f"the fence key: {NOT_A_NUMBER}"
    assert grant(OK, Q, Q, Q, [None, OK, error(NOT_A_NUMBER)]) == (Vote.FAULTED, cause)
    assert confirmation(OK, Q, Q, Q, Q, [None, OK, error(NOT_A_NUMBER), 1]) == (
        Vote.FAULTED,
        cause,
    )
    assert grant(OK, Q, Q, Q, [None, None, error(NOT_A_NUMBER)]) == (Vote.DENIED, None)


def test_h38_a_counter_beyond_doubles_is_no_fence() -> None:
    assert grant(OK, Q, Q, Q, [None, OK, FENCE_MAX]) == (Vote.GRANTED, FENCE_MAX)
    for counter in (FENCE_MAX + 1, 0, -5):
        answer = grant(OK, Q, Q, Q, [None, OK, counter])
        assert answer == (F, "the fence key: its number is not from 1 to 2**53")


def test_f074_a_key_that_is_no_lock_is_not_ours() -> None:
    wrong = error("WRONGTYPE Operation against a key holding the wrong kind of value")
    answer = confirmation(OK, Q, Q, Q, Q, [None, wrong, 41, 1])
    assert answer == (Vote.DENIED, "the key holds a non-lock value")


@pytest.mark.parametrize(
    ("parts", "answer"),
    [
        (
            [error("NOPERM no 'multi'"), OK, OK, 41, error("ERR EXEC without MULTI")],
            Refusal.FOR_GOOD,
        ),
        ([OK, Q, Q, error("NOPERM no 'incr'"), error("EXECABORT Transaction")], Refusal.FOR_GOOD),
        ([error("ERR unknown command 'MULTI'"), *[Q] * 3, error("ERR x")], Refusal.FOR_GOOD),
        (
            [OK, error("OOM command not allowed"), Q, Q, error("EXECABORT Transaction")],
            (Vote.FAULTED, "OOM command not allowed"),
        ),
        ([error("LOADING x")] * 5, (Vote.FAULTED, "LOADING x")),
        ([error("READONLY x")] * 5, (Vote.FAULTED, "READONLY x")),
    ],
)
def test_the_first_error_is_the_answer(parts: list[object], answer: object) -> None:
    assert grant(*parts) == answer


def test_a_conditional_set_that_is_unknown_inside_exec_is_a_refusal() -> None:
    """Old servers queue it and find out later; the counter has risen, which does no harm."""
    answer = confirmation(OK, Q, Q, Q, Q, [None, error("ERR syntax error"), 41, 1])
    assert answer is Refusal.FOR_GOOD


@pytest.mark.parametrize(
    "last", [None, [], [OK], [OK, OK], [OK, OK, b"41"], [OK, b"QUEUED", 41], 41, [[OK, OK, 41]]]
)
def test_whatever_does_not_fit_ends_the_trust_in_the_connection(last: object) -> None:
    assert doubtful(grant(OK, Q, Q, Q, last))
