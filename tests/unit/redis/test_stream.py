"""Bytes to votes: what servers say, cut to pieces, cut off or damaged, and what is taken from it.

The mux and the dialect together, with all forms of all verbs on one connection: answers of one reply,
of two (a look), of five and six (a transaction, whose last reply is an array).
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any, NamedTuple

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._core.fence import SEED_MIN
from aioredlock2._node import NON_LOCK, Request, Sighting, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.dialect import NO, YES, Doubt, Form, Refusal
from aioredlock2._redis.mux import Desync, Mux
from aioredlock2.outcomes import Vote

TOKEN = b"0123456789abcdef0123456789abcdef"
COUNTER = 1_900_000_000_000_000
QUEUED, OK, NIL, NULL = b"+QUEUED\r\n", b"+OK\r\n", b"$-1\r\n", b"_\r\n"
FIXED_OUT = Vote.FAULTED
FORMS = [(verb, form) for verb, forms in dialect.FORMS.items() for form in forms]
FORMS.append((Verb.REVOKE, dialect.WHOSE))


class Said(NamedTuple):
    """A request in one form, the bytes of its answer, and what they mean."""

    verb: Verb
    form: Form
    wire: bytes
    means: object


def done(commands: int, *results: bytes) -> bytes:
    """The answer to a transaction."""
    return OK + QUEUED * commands + b"*%d\r\n" % len(results) + b"".join(results)


def number(value: int) -> bytes:
    return b":%d\r\n" % value


def bulk(value: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(value), value)


FENCED, CONFIRM = dialect.FENCED, dialect.CONFIRM
ABORTED = b"-EXECABORT Transaction discarded because of previous errors.\r\n"
OOM = b"-OOM command not allowed when used memory > 'maxmemory'.\r\n"
SAYINGS = [
    Said(Verb.GRANT, dialect.SET_NX, OK, YES),
    Said(Verb.GRANT, dialect.SET_NX, NIL, NO),
    Said(Verb.GRANT, dialect.SET_NX, NULL, NO),
    Said(Verb.RENEW, dialect.SET_IFEQ, OK, YES),
    Said(Verb.RENEW, dialect.SET_IFEQ, NULL, NO),
    Said(Verb.RENEW, dialect.SET_IFEQ, OOM, Refusal.ONCE),
    Said(Verb.RENEW, dialect.RENEW_EVALSHA, number(1), YES),
    Said(Verb.RENEW, dialect.RENEW_EVALSHA, b"-NOSCRIPT No matching script.\r\n", Refusal.ONCE),
    Said(Verb.REVOKE, dialect.DELEX, number(1), YES),
    Said(Verb.REVOKE, dialect.DELIFEQ, number(0), NO),
    Said(Verb.REVOKE, dialect.DELIFEQ, b"-WRONGTYPE Operation\r\n", (Vote.DENIED, NON_LOCK)),
    Said(Verb.REVOKE, dialect.REVOKE_EVALSHA, number(0), NO),
    Said(
        Verb.INSPECT,
        dialect.INSPECT,
        bulk(TOKEN) + number(1500),
        (Vote.GRANTED, Sighting(TOKEN, 1500)),
    ),
    Said(Verb.INSPECT, dialect.INSPECT, NULL + number(-2), NO),
    Said(Verb.GRANT_FENCED, FENCED, done(3, OK, OK, number(COUNTER)), (Vote.GRANTED, COUNTER)),
    Said(Verb.GRANT_FENCED, FENCED, done(3, NULL, OK, number(7)), (Vote.GRANTED, 7)),
    Said(Verb.GRANT_FENCED, FENCED, done(3, NIL, NIL, number(COUNTER)), NO),
    Said(Verb.GRANT_FENCED, dialect.FENCED_EVALSHA, number(COUNTER), (Vote.GRANTED, COUNTER)),
    Said(Verb.GRANT_FENCED, dialect.FENCED_EVALSHA, NIL, NO),
    Said(Verb.CONFIRM, CONFIRM, done(4, NULL, OK, number(COUNTER), number(1)), YES),
    Said(Verb.CONFIRM, CONFIRM, done(4, OK, NULL, number(7), number(1)), NO),
    Said(Verb.CONFIRM, dialect.CONFIRM_EVALSHA, number(0), NO),
    Said(
        Verb.GRANT_FENCED,
        FENCED,
        OK + OOM + QUEUED * 2 + ABORTED,
        (FIXED_OUT, OOM[1:-2].decode()),
    ),
]
STREAMS = st.lists(st.sampled_from(SAYINGS), min_size=1, max_size=12)
CUTS = st.lists(st.integers(0, 400), max_size=12)
PUSH = b">2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n"


def request_of(verb: Verb) -> Request:
    return Request(verb, b"redlock:x", TOKEN, 1500)


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    """The stream, cut at these places."""
    ends = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})
    return [stream[start:end] for start, end in itertools.pairwise(ends)]


class Reader:
    """One connection: requests written, answers read."""

    def __init__(self, asked: list[Said]) -> None:
        self.mux: Mux[int] = Mux()
        self.asked = asked
        self.answers: list[object] = []
        for index, said in enumerate(asked):
            self.mux.expect_parts(said.form.replies - 1)
            self.mux.pending.append(index)

    def feed(self, data: bytes) -> None:
        self.mux.feed(data, self.replied)

    def replied(self, index: int, reply: object) -> None:
        assert index == len(self.answers)  # each once, in order
        said = self.asked[index]
        self.answers.append(dialect.read(said.form, request_of(said.verb), reply))


def meanings(asked: list[Said]) -> list[object]:
    return [said.means for said in asked]


@pytest.mark.parametrize("said", SAYINGS, ids=lambda said: f"{said.form.name} {said.wire[:12]!r}")
def test_h39_an_answer_may_be_split_anywhere(said: Said) -> None:
    """Between two others, in two pieces and in single bytes."""
    asked = [SAYINGS[0], said, SAYINGS[14]]
    stream = b"".join(each.wire for each in asked)
    places = [[cut] for cut in range(len(stream))]
    for cuts in [*places, list(range(len(stream)))]:
        reader = Reader(asked)
        for piece in pieces(stream, cuts):
            reader.feed(piece)
        assert meanings(asked) == reader.answers


@given(asked=STREAMS, cuts=CUTS, pushes=st.sets(st.integers(0, 12)))
def test_h39_chunks_and_pushes_change_nothing(
    asked: list[Said], cuts: list[int], pushes: set[int]
) -> None:
    stream = b"".join(
        (PUSH if index in pushes else b"") + said.wire for index, said in enumerate(asked)
    )
    reader = Reader(asked)
    for piece in pieces(stream, cuts):
        reader.feed(piece)
    assert meanings(asked) == reader.answers
    assert reader.mux.abandon() == []


@given(asked=STREAMS, end=st.integers(0, 400))
def test_h39_cut_off_anywhere_only_whole_answers_count(asked: list[Said], end: int) -> None:
    """A transaction counts with its last byte; whoever has no answer is told, once, in order."""
    stream = b"".join(said.wire for said in asked)
    end = min(end, len(stream))
    whole = sum(total <= end for total in itertools.accumulate(len(said.wire) for said in asked))
    reader = Reader(asked)
    reader.feed(stream[:end])
    assert meanings(asked)[:whole] == reader.answers
    assert reader.mux.abandon() == list(range(whole, len(asked)))


NOISE = st.binary(min_size=1, max_size=30) | st.lists(
    st.sampled_from([OK, NIL, NULL, QUEUED, b":1\r\n", b"*3\r\n", b"*-1\r\n", b"-ERR x\r\n", PUSH])
    | st.sampled_from([b"*", b"$", b"%", b">", b":", b"\r\n", b"1", b"-", b"~2\r\n", b"*0\r\n"]),
    min_size=1,
    max_size=6,
).map(b"".join)


@given(asked=STREAMS, place=st.integers(0, 400), noise=NOISE, cuts=CUTS, over=st.integers(0, 9))
def test_h39_damage_never_changes_what_was_answered_before(
    asked: list[Said], place: int, noise: bytes, cuts: list[int], over: int
) -> None:
    """Nothing but Desync comes out, whatever is put in or written over; every slot is told once."""
    stream = b"".join(said.wire for said in asked)
    place = min(place, len(stream))
    whole = sum(total <= place for total in itertools.accumulate(len(said.wire) for said in asked))
    reader = Reader(asked)
    with contextlib.suppress(Desync):
        for piece in pieces(stream[:place] + noise + stream[place + over :], cuts):
            reader.feed(piece)
    assert meanings(asked)[:whole] == reader.answers[:whole]
    unanswered = reader.mux.abandon()
    assert unanswered == list(range(len(reader.answers), len(asked)))


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 3)
    | st.sampled_from([SEED_MIN - 1, SEED_MIN, 2**53 - 1, 2**53])
    | st.floats()
    | st.sampled_from([b"OK", b"QUEUED", TOKEN, b""])
    | st.sampled_from(["OOM x", "NOSCRIPT x", "ERR syntax error", "WRONGTYPE x"]).map(
        hiredis.ReplyError
    ),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.integers(0, 3), inner),
    max_leaves=8,
)


def is_yes(form: Form, reply: Any) -> bool:
    """Whether this, and nothing else, is a yes, spelt out once more."""
    match form.name, reply:
        case "SET NX" | "SET IFEQ", b"OK":
            return True
        case "MULTI INCR", [_, _, _, _, [_, b"OK", int() as counter]]:
            return type(counter) is int and counter < 2**53
        case "MULTI INCRBY", [_, _, _, _, _, [_, b"OK", int() as counter, _]]:
            return type(counter) is int
        case "GET PTTL", [bytes(), int() as left]:
            return type(left) is int and left != -2
        case "EVALSHA" | "EVAL", int() if form.yes is ...:
            return type(reply) is int and SEED_MIN <= reply < 2**53
        case "EVALSHA" | "EVAL" | "DELEX" | "DELIFEQ", 1:
            return type(reply) is int
    return False


@given(st.sampled_from(FORMS), st.data())
def test_h20_whatever_the_reply_is_only_the_right_one_is_a_yes(
    asked: tuple[Verb, Form], data: st.DataObject
) -> None:
    """A reply of another request, of any type, is an answer or a doubt, and never an exception."""
    verb, form = asked
    count = form.replies
    tail = st.tuples(VALUES, st.just(b"OK") | VALUES, *([VALUES] * (count - 4))).map(list)
    parts = st.tuples(*([VALUES] * (count - 1)), VALUES | tail).map(list)
    reply: Any = data.draw(parts if count > 1 else VALUES)
    answer = dialect.read(form, request_of(verb), reply)
    if isinstance(answer, Refusal):
        return
    vote, cause = answer
    has_error = count > 1 and any(isinstance(part, hiredis.ReplyError) for part in reply)
    assert (vote is Vote.GRANTED) == (is_yes(form, reply) and not has_error)
    assert isinstance(cause, str | int | Sighting | Doubt | None)
    if isinstance(cause, Sighting):
        assert cause.remaining > 0 or cause.remaining_ms <= 0
