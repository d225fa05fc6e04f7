"""One stream, many requests: however it is cut to pieces, each gets its own reply."""

from __future__ import annotations

import contextlib
import itertools
from typing import TypeVar

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._redis.mux import Desync, Mux

T = TypeVar("T")
PUSH = b">2\r\n+invalidate\r\n*1\r\n$3\r\nkey\r\n"

RECORDED: list[tuple[bytes, object]] = [
    (b"+OK\r\n", b"OK"),
    (b"$-1\r\n", None),
    (b"_\r\n", None),
    (b":1\r\n", 1),
    (b":-2\r\n", -2),
    (b"$32\r\n0123456789abcdef0123456789abcdef\r\n", b"0123456789abcdef0123456789abcdef"),
    (b"$4\r\n\r\n\r\n\r\n", b"\r\n\r\n"),
    (b"$0\r\n\r\n", b""),
    (b"$9\r\n*99999999\r\n", b"*99999999"),
    (b"$13\r\na\r\n%1000000\r\n\r\n", b"a\r\n%1000000\r\n"),
    (b"*3\r\n:1\r\n$-1\r\n*1\r\n+x\r\n", [1, None, [b"x"]]),
    (b"%2\r\n+server\r\n+valkey\r\n+proto\r\n:3\r\n", {b"server": b"valkey", b"proto": 3}),
    (b"#t\r\n", True),
    (b",1.5\r\n", 1.5),
]
"""What servers say, in RESP2 and RESP3, each with what it means."""
STREAM = b"".join(wire for wire, _ in RECORDED)
MEANT = [(number, value) for number, (_, value) in enumerate(RECORDED)]


def expect(mux: Mux[T], slot: T, replies: int = 1) -> None:
    """A request was written, as the transport does it."""
    mux.expect_parts(replies - 1)
    mux.pending.append(slot)


def expecting(requests: int) -> Mux[int]:
    mux: Mux[int] = Mux()
    for number in range(requests):
        expect(mux, number)
    return mux


def fed(mux: Mux[T], *pieces: bytes) -> list[tuple[T, object]]:
    pairs: list[tuple[T, object]] = []
    for piece in pieces:
        mux.feed(piece, lambda slot, reply: pairs.append((slot, reply)))
    return pairs


def same(one: object, other: object) -> bool:
    """Equal, and of equal type: True is not 1 here."""
    return type(one) is type(other) and one == other


def assert_meant(pairs: list[tuple[int, object]]) -> None:
    assert len(pairs) == len(MEANT)
    for (slot, reply), (number, value) in zip(pairs, MEANT, strict=True):
        assert slot == number
        assert same(reply, value), (reply, value)


@pytest.mark.parametrize("split", range(len(STREAM) + 1))
def test_f102_h39_a_stream_may_be_split_anywhere(split: int) -> None:
    assert_meant(fed(expecting(len(RECORDED)), STREAM[:split], STREAM[split:]))


def test_f102_a_stream_may_come_byte_by_byte() -> None:
    assert_meant(fed(expecting(len(RECORDED)), *(STREAM[i : i + 1] for i in range(len(STREAM)))))


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_f102_a_stream_may_come_in_any_pieces(cuts: list[int]) -> None:
    ends = sorted({0, len(STREAM), *cuts})
    pieces = [STREAM[start:end] for start, end in itertools.pairwise(ends)]
    assert_meant(fed(expecting(len(RECORDED)), *pieces))


@given(st.sets(st.integers(0, len(RECORDED))), st.integers(1, 7))
def test_f102_pushes_in_between_are_nobodys_reply(places: set[int], size: int) -> None:
    wires = [wire for wire, _ in RECORDED] + [b""]
    stream = b"".join((PUSH if n in places else b"") + wire for n, wire in enumerate(wires))
    pieces = (stream[i : i + size] for i in range(0, len(stream), size))
    assert_meant(fed(expecting(len(RECORDED)), *pieces))


def test_a_push_with_nothing_asked_is_no_harm() -> None:
    mux = expecting(0)
    assert fed(mux, PUSH, PUSH) == []
    assert mux.answered == 0


def test_an_error_reply_is_a_reply() -> None:
    ((slot, reply),) = fed(expecting(1), b"-NOSCRIPT No matching script\r\n")
    assert slot == 0
    assert isinstance(reply, hiredis.ReplyError)
    assert str(reply) == "NOSCRIPT No matching script"


def test_bytes_that_are_no_text_stay_bytes() -> None:
    assert fed(expecting(1), b"$3\r\n\xff\x00\xfe\r\n") == [(0, b"\xff\x00\xfe")]


def test_a_request_of_several_replies_gets_them_together() -> None:
    mux: Mux[str] = Mux()
    expect(mux, "lone")
    expect(mux, "pair", 2)
    expect(mux, "after")
    assert fed(mux, b":1\r\n$1\r\n") == [("lone", 1)]
    assert fed(mux, b"v\r\n") == []
    assert fed(mux, b":77\r\n:3\r\n") == [("pair", [b"v", 77]), ("after", 3)]


@given(st.lists(st.integers(1, 5), max_size=30), st.integers(1, 9))
def test_replies_are_counted_and_matched_in_order(sizes: list[int], size: int) -> None:
    """`expected` and `answered` tell how far behind the server is."""
    mux: Mux[int] = Mux()
    for number, replies in enumerate(sizes):
        expect(mux, number, replies)
    values = itertools.count()
    wanted: list[tuple[int, object]] = []
    for number, replies in enumerate(sizes):
        got = [next(values) for _ in range(replies)]
        wanted.append((number, got if replies > 1 else got[0]))
    stream = b"".join(b":%d\r\n" % value for value in range(sum(sizes)))
    assert mux.expected == sum(sizes)
    assert fed(mux, *(stream[i : i + size] for i in range(0, len(stream), size))) == wanted
    assert mux.answered == sum(sizes)
    assert not mux.pending


@pytest.mark.parametrize(
    "garbage",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"\x00",
        b"\xff\xff\xff\xff",
        b"$x\r\n",
        b"*-5\r\n",
        b":a\r\n",
        b"%1\r\n*0\r\n:1\r\n",  # well-formed, but no dict can hold it
        b"%1\r\n%0\r\n:1\r\n",
    ],
)
def test_f102_garbage_ends_the_trust(garbage: bytes) -> None:
    mux = expecting(2)
    pairs: list[tuple[int, object]] = []
    with pytest.raises(Desync):
        mux.feed(b"+OK\r\n" + garbage, lambda slot, reply: pairs.append((slot, reply)))
    assert pairs == [(0, b"OK")]
    assert mux.abandon() == [1]


@pytest.mark.parametrize("sign", [b"*", b"%", b"~", b">", b"|"])
def test_f102_a_reply_of_absurd_length_ends_the_trust_before_room_is_made(sign: bytes) -> None:
    mux = expecting(2)
    assert fed(mux, b"+OK\r\n") == [(0, b"OK")]
    with pytest.raises(Desync, match="absurd length"):
        fed(mux, sign + b"4294967295\r\n")
    assert mux.abandon() == [1]


def test_f102_a_reply_that_nobody_asked_for_ends_the_trust() -> None:
    with pytest.raises(Desync, match="nobody asked for"):
        fed(expecting(1), b"+OK\r\n+OK\r\n")


RESP_LIKE = st.lists(
    st.sampled_from([b"*", b"%", b"~", b">", b"$", b":", b"+", b"-", b"#t", b"_", b",", b"=", b"("])
    | st.sampled_from([b"0", b"1", b"2", b"-1", b"a", b"\r\n", b"\r\n", b"\r\n"]),
    max_size=40,
).map(b"".join)


@given(st.binary(max_size=60) | RESP_LIKE, st.integers(1, 8))
def test_f102_whatever_comes_is_replies_or_desync(noise: bytes, size: int) -> None:
    """Nothing but Desync comes out, and no request is answered twice or out of order."""
    mux, slots = expecting(5), list[int]()
    with contextlib.suppress(Desync):
        for start in range(0, len(noise), size):
            mux.feed(noise[start : start + size], lambda slot, _: slots.append(slot))
    assert slots == list(range(len(slots)))
    assert slots + mux.abandon() == [0, 1, 2, 3, 4]


@given(st.integers(0, len(STREAM) - 1), st.integers(0, 255))
def test_f102_one_wrong_byte_never_shifts_the_replies_before_it(place: int, value: int) -> None:
    """Every reply that is complete before the damage is what it was."""
    damaged = STREAM[:place] + bytes([value]) + STREAM[place + 1 :]
    ends = itertools.accumulate(len(wire) for wire, _ in RECORDED)
    whole = sum(end <= place for end in ends)
    mux, pairs = expecting(len(RECORDED)), list[tuple[int, object]]()
    with contextlib.suppress(Desync):
        mux.feed(damaged, lambda slot, reply: pairs.append((slot, reply)))
    assert len(pairs) >= whole
    for (slot, reply), (number, meant) in zip(pairs[:whole], MEANT[:whole], strict=True):
        assert slot == number
        assert same(reply, meant)


def test_what_is_abandoned_is_each_request_once_oldest_first() -> None:
    mux: Mux[str] = Mux()
    expect(mux, "first")
    expect(mux, "pair", 2)
    expect(mux, "last")
    assert fed(mux, b"+OK\r\n+half of the pair\r\n") == [("first", b"OK")]
    assert mux.abandon() == ["pair", "last"]
    assert mux.abandon() == []
    with pytest.raises(Desync):
        fed(mux, b"+OK\r\n")
