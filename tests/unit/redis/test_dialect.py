"""Which bytes ask what, and what the answers mean: as tables, without a server."""

from __future__ import annotations

import hashlib
import itertools

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from aioredlock2._node import ABSENT, Request, Sighting, Verb
from aioredlock2._redis import dialect, scripts
from aioredlock2._redis.dialect import FORMS, Dialect, Form, Refusal
from aioredlock2.outcomes import Vote

KEY, TOKEN = b"redlock:x", b"0123456789abcdef0123456789abcdef"
ALL_FORMS = [(verb, form) for verb, forms in FORMS.items() for form in forms]
LOCKING = [(verb, form) for verb, form in ALL_FORMS if verb is not Verb.INSPECT]
PLAIN = [(verb, form) for verb, form in LOCKING if verb not in (Verb.GRANT_FENCED, Verb.CONFIRM)]
"""One command and a yes or no: fences have a file of their own (test_dialect_fence.py)."""
RENEWING, REVOKING = FORMS[Verb.RENEW], FORMS[Verb.REVOKE]


def name_of(value: object) -> str:
    return value.name if isinstance(value, (Form, Verb)) else str(value)


def request_of(verb: Verb, key: bytes = KEY, token: bytes = TOKEN, ttl_ms: int = 1500) -> Request:
    return Request(verb, key, token, ttl_ms)


def commands_in(packed: bytes) -> list[list[bytes]]:
    """The commands in some bytes, read as a server would."""
    commands = []
    while packed:
        head, _, packed = packed.partition(b"\r\n")
        assert head[:1] == b"*"
        words = []
        for _ in range(int(head[1:])):
            size, _, packed = packed.partition(b"\r\n")
            assert size[:1] == b"$"
            length = int(size[1:])
            words.append(packed[:length])
            assert packed[length : length + 2] == b"\r\n"
            packed = packed[length + 2 :]
        commands.append(words)
    return commands


def asked(form: Form, request: Request) -> list[bytes]:
    (command,) = commands_in(dialect.pack(form, request))
    return command


# --- asking -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "verb", "words"),
    [
        (dialect.SET_NX, Verb.GRANT, [b"SET", KEY, TOKEN, b"NX", b"PX", b"1500"]),
        (
            dialect.SET_IFEQ,
            Verb.RENEW,
            [b"SET", KEY, TOKEN, b"IFEQ", TOKEN, b"PX", b"1500"],
        ),
        (dialect.DELEX, Verb.REVOKE, [b"DELEX", KEY, b"IFEQ", TOKEN]),
        (dialect.DELIFEQ, Verb.REVOKE, [b"DELIFEQ", KEY, TOKEN]),
        (
            dialect.RENEW_EVALSHA,
            Verb.RENEW,
            [b"EVALSHA", scripts.RENEW.sha1, b"1", KEY, TOKEN, b"1500"],
        ),
        (
            dialect.RENEW_EVAL,
            Verb.RENEW,
            [b"EVAL", scripts.RENEW.text, b"1", KEY, TOKEN, b"1500"],
        ),
        (
            dialect.REVOKE_EVALSHA,
            Verb.REVOKE,
            [b"EVALSHA", scripts.REVOKE.sha1, b"1", KEY, TOKEN],
        ),
        (dialect.REVOKE_EVAL, Verb.REVOKE, [b"EVAL", scripts.REVOKE.text, b"1", KEY, TOKEN]),
        (dialect.WHOSE, Verb.REVOKE, [b"EXISTS", KEY]),
    ],
    ids=name_of,
)
def test_each_form_asks_exactly_this(form: Form, verb: Verb, words: list[bytes]) -> None:
    assert asked(form, request_of(verb)) == words


def test_an_inspection_asks_for_value_and_time_left_at_once() -> None:
    packed = dialect.pack(dialect.INSPECT, request_of(Verb.INSPECT))
    assert commands_in(packed) == [[b"GET", KEY], [b"PTTL", KEY]]
    assert dialect.INSPECT.replies == 2


@given(key=st.binary(min_size=1, max_size=50), ttl_ms=st.integers(1, 2**53))
def test_f110_names_of_any_bytes_arrive_whole(key: bytes, ttl_ms: int) -> None:
    for verb, form in PLAIN:
        command = asked(form, request_of(verb, key, ttl_ms=ttl_ms))
        assert key in command
        assert TOKEN in command


@pytest.mark.parametrize(("verb", "form"), PLAIN, ids=name_of)
def test_f063_f109_h27_nothing_is_ever_set_without_px_or_deleted_without_comparing(
    verb: Verb, form: Form
) -> None:
    command = asked(form, request_of(verb))
    name = command[0]
    assert name in {b"SET", b"DELEX", b"DELIFEQ", b"EVALSHA", b"EVAL"}
    if name == b"SET":
        assert command[command.index(b"PX") + 1] == b"1500"
        assert b"NX" in command or command[command.index(b"IFEQ") + 1] == TOKEN
    if name == b"DELEX":
        assert command[2:] == [b"IFEQ", TOKEN]


def test_f105_scripts_are_known_by_the_digest_of_their_text() -> None:
    for script in (scripts.GRANT_FENCED, scripts.CONFIRM, scripts.RENEW, scripts.REVOKE):
        digest = hashlib.sha1(script.text).hexdigest()  # noqa: S324 - as the server does
        assert script.sha1 == digest.encode()
        assert not script.text.startswith(b"#!")


def test_nodes_of_one_dialect_share_the_bytes() -> None:
    request = request_of(Verb.GRANT)
    assert dialect.pack(dialect.SET_NX, request) is dialect.pack(dialect.SET_NX, request)
    renewal = request_of(Verb.RENEW)
    packed = {form: dialect.pack(form, renewal) for form in RENEWING}
    assert len(set(packed.values())) == len(RENEWING)
    assert all(dialect.pack(form, renewal) == packed[form] for form in RENEWING)


def test_a_probe_is_the_real_command_on_another_key() -> None:
    for form in (dialect.SET_IFEQ, dialect.DELEX, dialect.DELIFEQ):
        (probe,) = commands_in(dialect.probe_command(form, b"probe", TOKEN))
        real = asked(form, request_of(Verb.REVOKE, b"probe", ttl_ms=1))
        assert probe == real


# --- answers ------------------------------------------------------------------------------------


UNLIKE: list[object] = [
    b"QUEUED",
    "OK",
    b"ok",
    b"1",
    2,
    -1,
    True,
    False,
    1.0,
    0.0,
    [b"OK"],
    {},
    b"",
]
"""Close to an answer, and none."""


@pytest.mark.parametrize(("verb", "form"), PLAIN, ids=name_of)
def test_only_the_exact_reply_is_a_yes_or_a_no(verb: Verb, form: Form) -> None:
    yes, no = {
        "SET": (b"OK", None),
    }.get(form.name.partition(" ")[0], (1, 0))
    request = request_of(verb)
    assert dialect.read(form, request, yes) == (Vote.GRANTED, None)
    assert dialect.read(form, request, no) == (Vote.DENIED, None)
    for other in UNLIKE:
        answer = dialect.read(form, request, other)
        assert isinstance(answer, tuple)
        vote, cause = answer
        assert vote is Vote.FAULTED, other
        assert cause == f"unexpected reply to {form.name} of type {type(other).__name__}"
        assert isinstance(cause, dialect.Doubt)


@pytest.mark.parametrize(
    ("reply", "answer"),
    [
        ([None, -2], (Vote.DENIED, None)),
        ([TOKEN, -2], (Vote.DENIED, None)),
        ([TOKEN, 1500], (Vote.GRANTED, Sighting(TOKEN, 1500))),
        ([b"eternal", -1], (Vote.GRANTED, Sighting(b"eternal", -1))),
        (
            [hiredis.ReplyError("WRONGTYPE Operation against a key"), 5],
            (Vote.DENIED, "the key holds a non-lock value"),
        ),
        (
            [TOKEN, hiredis.ReplyError("NOPERM no permissions to run 'pttl'")],
            (Vote.FAULTED, "NOPERM no permissions to run 'pttl'"),
        ),
        (
            [hiredis.ReplyError("LOADING Redis is loading"), hiredis.ReplyError("LOADING x")],
            (Vote.FAULTED, "LOADING Redis is loading"),
        ),
    ],
)
def test_f116_an_inspection_tells_who_and_how_long(reply: object, answer: object) -> None:
    assert dialect.read(dialect.INSPECT, request_of(Verb.INSPECT), reply) == answer


@pytest.mark.parametrize(
    ("reply", "cause"),
    [
        (0, ABSENT),
        (1, "another value"),
        (
            hiredis.ReplyError("NOPERM this user has no permissions"),
            "no key or another value; EXISTS: NOPERM this user has no permissions",
        ),
    ],
)
def test_f070_an_expired_key_is_told_from_a_foreign_one(reply: object, cause: str) -> None:
    """Whatever EXISTS says, the revoke before it found nothing of ours."""
    answer = dialect.read(dialect.WHOSE, request_of(Verb.REVOKE), reply)
    assert answer == (Vote.DENIED, cause)


@pytest.mark.parametrize(("verb", "form"), LOCKING, ids=name_of)
@pytest.mark.parametrize(
    "text",
    [
        "WRONGTYPE Operation against a key holding the wrong kind of value",
        "ERR Key should be of string type if conditions are specified",
        "ERR Error running script (call to f_1): @user_script:1: WRONGTYPE Operation against a key",
    ],
)
def test_f074_a_key_that_is_no_lock_is_not_ours(verb: Verb, form: Form, text: str) -> None:
    answer = dialect.read(form, request_of(verb), hiredis.ReplyError(text))
    assert answer == (Vote.DENIED, "the key holds a non-lock value")


@pytest.mark.parametrize(("verb", "form"), LOCKING, ids=name_of)
@pytest.mark.parametrize(
    "text",
    [
        "LOADING Redis is loading the dataset in memory",
        "BUSY Redis is busy running a script",
        "READONLY You can't write against a read only replica.",
        "MISCONF Errors writing to the AOF file",
        "NOREPLICAS Not enough good replicas to write.",
        "NOAUTH Authentication required.",
        "ERR max number of clients reached",
        "UNKNOWN something new",
        "",
    ],
)
def test_f026_an_error_is_no_answer_and_no_refusal(verb: Verb, form: Form, text: str) -> None:
    """Neither yes nor "held by somebody else", and no reason to try another command."""
    answer = dialect.read(form, request_of(verb), hiredis.ReplyError(text))
    assert answer == (Vote.FAULTED, text)


# --- refusals -----------------------------------------------------------------------------------

NATIVE = [dialect.SET_IFEQ, dialect.DELEX, dialect.DELIFEQ]
SCRIPTED = [form for _, form in LOCKING if form.name.startswith("EVAL")]


@pytest.mark.parametrize(
    ("text", "native", "scripted"),
    [
        ("NOSCRIPT No matching script", Refusal.ONCE, Refusal.ONCE),
        ("ERR unknown command 'DELEX', with args", Refusal.FOR_GOOD, Refusal.FOR_GOOD),
        ("ERR syntax error", Refusal.FOR_GOOD, Refusal.FOR_GOOD),
        ("ERR wrong number of arguments for 'set'", Refusal.FOR_GOOD, Refusal.FOR_GOOD),
        ("NOPERM this user has no permissions", Refusal.FOR_GOOD, Refusal.FOR_GOOD),
        ("OOM command not allowed when used memory", Refusal.ONCE, None),
        ("ERR Error running script: -NOPERM User has no", None, Refusal.FOR_GOOD),
        ("ERR ACL failure in script: User x has no", None, Refusal.FOR_GOOD),
        ("LOADING Redis is loading", None, None),
        ("READONLY You can't write", None, None),
        ("BUSY Redis is busy", None, None),
    ],
)
def test_f107_a_refused_command_is_told_from_a_refused_key(
    text: str, native: Refusal | None, scripted: Refusal | None
) -> None:
    assert [dialect.refusal_of(form, text) for form in NATIVE] == [native] * len(NATIVE)
    assert [dialect.refusal_of(form, text) for form in SCRIPTED] == [scripted] * len(SCRIPTED)
    for form in NATIVE:
        answer = dialect.read(form, request_of(Verb.REVOKE), hiredis.ReplyError(text))
        assert (answer is native) if native else isinstance(answer, tuple)


def test_f025_out_of_memory_is_final_for_a_grant() -> None:
    """There is no other way to set a key, and it must say why."""
    text = "OOM command not allowed when used memory > 'maxmemory'."
    answer = dialect.read(dialect.SET_NX, request_of(Verb.GRANT), hiredis.ReplyError(text))
    assert answer == (Vote.FAULTED, text)


# --- causes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("MOVED 3999 127.0.0.1:6381", "cluster node given as independent node (MOVED)"),
        ("ASK 3999 127.0.0.1:6381", "cluster node given as independent node (ASK)"),
        (
            "CLUSTERDOWN Hash slot not served",
            "cluster node given as independent node (CLUSTERDOWN)",
        ),
        ("CROSSSLOT Keys in request", "cluster node given as independent node (CROSSSLOT)"),
        (
            f"ERR unknown command 'DELEX', with args beginning with: 'x' 'IFEQ' '{TOKEN.decode()}'",
            "ERR unknown command 'DELEX'",
        ),
        (f"ERR value {TOKEN.decode()} is odd", "ERR value ... is odd"),
        ("ERR two\r\nlines", "ERR two  lines"),
        ("x" * 1000, "x" * 160),
    ],
)
def test_f117_a_cause_is_one_short_line_without_the_token(text: str, cause: str) -> None:
    assert dialect.cause_of(request_of(Verb.GRANT), text) == cause


@given(st.text(max_size=200), st.text(max_size=200))
@example(before="CLUSTERDOWN", after="")
@example(before="ERR \r\n", after="x" * 200)
def test_f117_a_token_never_gets_into_a_cause(before: str, after: str) -> None:
    text = before + TOKEN.decode() + after
    cause = dialect.cause_of(request_of(Verb.GRANT), text)
    assert TOKEN.decode() not in cause
    assert len(cause) <= 160
    assert "\n" not in cause


def test_a_request_without_a_token_has_nothing_to_hide() -> None:
    assert dialect.cause_of(Request(Verb.INSPECT, KEY), "ERR abc") == "ERR abc"


@pytest.mark.parametrize(
    ("cause", "ends", "passes"),
    [
        (dialect.Doubt("unexpected reply to SET NX of type list"), True, False),
        ("READONLY You can't write against a read only replica.", True, False),
        ("NOAUTH Authentication required.", True, False),
        ("LOADING Redis is loading", False, True),
        ("BUSY Redis is busy", False, True),
        ("MISCONF Errors writing", False, True),
        ("NOPERM no permissions", False, False),
        ("OOM command not allowed", False, False),
        ("unexpected, but said by a server", False, False),
    ],
)
def test_f028_some_causes_end_the_connection_and_some_pass(
    cause: str, ends: bool, passes: bool
) -> None:
    assert dialect.ends_the_link(cause) is ends
    assert dialect.is_passing(cause) is passes


# --- what a connection prefers ------------------------------------------------------------------


@pytest.mark.parametrize("verb", Verb)
def test_the_native_form_comes_first(verb: Verb) -> None:
    assert Dialect().preferred[verb] is FORMS[verb][0]


def test_what_a_connection_was_found_to_prefer_comes_first() -> None:
    found = Dialect({Verb.REVOKE: dialect.DELIFEQ, Verb.RENEW: dialect.RENEW_EVALSHA})
    assert found.preferred[Verb.REVOKE] is dialect.DELIFEQ
    assert found.preferred[Verb.GRANT] is dialect.SET_NX
    assert found.commands == ("DELIFEQ", "EVALSHA")


@pytest.mark.parametrize(("verb", "first"), ALL_FORMS, ids=name_of)
def test_f107_every_form_is_tried_once_from_the_preferred_one_on(verb: Verb, first: Form) -> None:
    """Whatever comes first, a server that gained or lost a command is found out in one request."""
    found = Dialect({verb: first})
    tried, form = [], found.preferred[verb]
    for _ in itertools.repeat(None, 10):
        tried.append(form)
        following = found.next_form(verb, form, first)
        if following is None:
            break
        form = following
    assert tried[0] is first
    assert sorted(each.name for each in tried) == sorted(each.name for each in FORMS[verb])


@pytest.mark.parametrize(
    ("worked", "then"),
    [
        (dialect.DELEX, dialect.DELEX),
        (dialect.DELIFEQ, dialect.DELIFEQ),
        (dialect.REVOKE_EVALSHA, dialect.REVOKE_EVALSHA),
        (dialect.REVOKE_EVAL, dialect.REVOKE_EVALSHA),
    ],
    ids=name_of,
)
def test_what_worked_is_preferred_a_script_by_its_digest(worked: Form, then: Form) -> None:
    found = Dialect()
    found.prefer(Verb.REVOKE, worked)
    assert found.preferred[Verb.REVOKE] is then
    assert found.preferred[Verb.RENEW] is dialect.SET_IFEQ


def test_connections_prefer_independently() -> None:
    one, other = Dialect(), Dialect()
    one.prefer(Verb.RENEW, dialect.RENEW_EVAL)
    assert one.preferred[Verb.RENEW] is dialect.RENEW_EVALSHA
    assert other.preferred[Verb.RENEW] is dialect.SET_IFEQ
