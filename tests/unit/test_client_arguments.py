"""Every argument of the public API is judged before any I/O; the error says what is wrong with it.

It names the argument, shows the value, and tells what is allowed. A wrong type is a TypeError, a wrong
value a ConfigurationError, which is a ValueError.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable, Generator
from datetime import timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any, NoReturn

import pytest
import redis
import redis.asyncio

from aioredlock2 import ConfigurationError, Lock, Redlock, RedlockError, RetryPolicy, embedded

URLS = ["redis://127.0.0.1:7001", "redis://127.0.0.1:7002", "redis://127.0.0.1:7003"]

NOT_SECONDS: list[Any] = [True, False, "10", b"10", [10], Decimal(10), Fraction(10), 10j]
NO_DURATION: list[Any] = [-1, -0.001, math.nan, math.inf, -math.inf, 2**63, 10**400, 1e300]
NO_DURATION += [timedelta(seconds=-1)]
ZERO: list[Any] = [0, 0.0, -0.0, timedelta(0)]
NOT_BOOL: list[Any] = [0, 1, None, "yes"]
NOT_NUMBER: list[Any] = [True, None, "2", timedelta(seconds=2), [2]]
NOT_NAME: list[Any] = [None, 42, True, bytearray(b"x"), memoryview(b"x"), ["x"], 1.5, object]
NO_NAME: list[Any] = ["", b"", "\ud800"]


@pytest.fixture(autouse=True)
def no_socket(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Fails the test if a socket for a network is made or a name is looked up."""
    tried: list[str] = []
    make: Callable[..., None] = socket.socket.__init__

    def refuse(self: socket.socket, family: int = -1, *args: Any, **kwargs: Any) -> None:
        if family in (-1, socket.AF_INET, socket.AF_INET6):
            tried.append("socket")
        make(self, family, *args, **kwargs)

    def look_up(host: object, *_: object, **__: object) -> NoReturn:
        tried.append(f"name {host}")
        raise OSError

    monkeypatch.setattr(socket.socket, "__init__", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    yield
    assert [] == tried


def client(**options: Any) -> Redlock:
    return Redlock(URLS, **options)


def lock(**options: Any) -> Lock:
    return client()("invoice:42", **options)


def named(resource: Any) -> Lock:
    return client()(resource)


def cases(
    argument: str, call: Callable[..., object], wrong_types: list[Any], wrong_values: list[Any]
) -> list[Any]:
    """One parameter set for each wrong value of one argument."""
    kinds: list[tuple[type[Exception], Any]] = [(TypeError, each) for each in wrong_types]
    kinds += [(ConfigurationError, each) for each in wrong_values]
    where = call.__name__
    return [
        pytest.param(argument, call, value, error, id=f"{where}({argument}={value!r:.30})")
        for error, value in kinds
    ]


WRONG = [
    *cases("ttl", client, [*NOT_SECONDS, None], [*NO_DURATION, *ZERO, 1e-9, 0.001, 0.012]),
    *cases("wait", client, NOT_SECONDS, NO_DURATION),
    *cases("node_timeout", client, NOT_SECONDS, [*NO_DURATION, *ZERO]),
    *cases("retry", client, [0.1, 3, True, {}, RetryPolicy], []),
    *cases("drift_factor", client, NOT_NUMBER, [-0.01, 1, 1.5, math.nan, math.inf]),
    *cases("prefix", client, [None, b"redlock:", 42, ["x"]], ["\ud800"]),
    *cases("restart_guard", client, [None, "10", [10], 10j], [*NO_DURATION, *ZERO]),
    *cases("ttl", lock, [*NOT_SECONDS, None], [*NO_DURATION, *ZERO, 1e-9, 0.001, 0.012]),
    *cases("wait", lock, NOT_SECONDS, NO_DURATION),
    *cases("renew", lock, NOT_BOOL, []),
    *cases("max_hold", lock, NOT_SECONDS, [*NO_DURATION, *ZERO, 9.999]),
    *cases("on_lost", lock, [None, 5, True, ["cancel"]], ["", "raise", "CANCEL"]),
    *cases("resource", named, NOT_NAME, NO_NAME),
    *cases("floor", RetryPolicy, [*NOT_SECONDS, None], [*NO_DURATION, *ZERO]),
    *cases("cap", RetryPolicy, [*NOT_SECONDS, None], [*NO_DURATION, *ZERO, 0.001]),
    *cases("growth", RetryPolicy, NOT_NUMBER, [0, 0.99, -1, math.nan, math.inf]),
    *cases("jitter", RetryPolicy, NOT_NUMBER, [-0.01, 1.01, math.nan, math.inf]),
    *cases("nodes", embedded.start, [None, "5", 2.5, True, [5]], [0, -1]),
]


@pytest.mark.parametrize(("argument", "call", "value", "error"), WRONG)
def test_a_wrong_argument_is_named_with_its_value_and_what_is_allowed(
    argument: str, call: Callable[..., object], value: Any, error: type[Exception]
) -> None:
    """Nothing was sent, and the text needs no look into the documentation."""
    with pytest.raises(error) as caught:
        call(**{argument: value})
    text = str(caught.value)
    assert re.match(rf"{argument}\b", text)
    assert repr(value)[:30] in text
    assert "must" in text
    if error is ConfigurationError:
        assert isinstance(caught.value, ValueError)
        assert isinstance(caught.value, RedlockError)


@pytest.mark.parametrize("value", [2**63, 1e300], ids=repr)
def test_a_duration_that_is_too_long_is_told_the_longest(value: float) -> None:
    """To be finite is not enough: the error says where it ends."""
    with pytest.raises(ConfigurationError, match=r"at most 9007199254740\.99"):
        client(ttl=value)


@pytest.mark.parametrize(
    ("argument", "value", "hint"),
    [("wait", math.inf, "None"), ("max_hold", math.inf, "None"), ("max_hold", 0, "None")],
)
def test_whoever_wants_no_bound_is_told_how_to_say_so(
    argument: str, value: float, hint: str
) -> None:
    """There is a value for "for ever", and the error names it."""
    with pytest.raises(ConfigurationError, match=hint):
        lock(**{argument: value})


def test_an_infinite_growth_is_not_told_that_infinity_is_allowed() -> None:
    """What the error calls allowed is allowed."""
    with pytest.raises(ConfigurationError, match="finite") as caught:
        RetryPolicy(growth=math.inf)
    assert "to inf" not in str(caught.value)


def test_whoever_wants_no_restart_guard_is_told_how_to_say_so() -> None:
    """Zero seconds are no guard: that is said by False."""
    with pytest.raises(ConfigurationError, match="False"):
        client(restart_guard=0)


# --- nodes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [[], (), set(), iter([])], ids=lambda x: type(x).__name__)
def test_f004_no_nodes_are_refused(nodes: Any) -> None:
    """Zero of zero is no quorum."""
    with pytest.raises(ConfigurationError, match=r"nodes=.*: must be at least one node"):
        Redlock(nodes)


@pytest.mark.parametrize("nodes", [None, 42, "redis://127.0.0.1:7001", b"redis://127.0.0.1:7001"])
def test_nodes_that_are_no_list_are_refused(nodes: Any) -> None:
    """A single URL is a likely slip: iterated, it would be many strange nodes."""
    with pytest.raises(TypeError, match=r"nodes.*: must be a list of nodes"):
        Redlock(nodes)


@pytest.mark.parametrize(
    "node",
    [None, 42, True, b"redis://127.0.0.1:7001", ["redis://127.0.0.1:7001"], object(), redis.Redis],
    ids=lambda node: type(node).__name__,
)
def test_a_node_of_another_type_is_refused(node: Any) -> None:
    """The text lists what a node may be, and which type this one has."""
    with pytest.raises(TypeError, match=r"nodes\[1\].* must be a URL, .* not ") as caught:
        Redlock([URLS[0], node])
    assert type(node).__qualname__ in str(caught.value)


def test_a_synchronous_client_is_no_node() -> None:
    """It would block the loop; the text asks for redis.asyncio's."""
    with pytest.raises(TypeError, match=r"redis\.asyncio\.Redis.* not redis\..*Redis"):
        Redlock([redis.Redis(port=7001)])  # type: ignore[list-item]


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:7001",
        "http://127.0.0.1:7001",
        "redis:/127.0.0.1",
        "redis+sentinel://127.0.0.1:7001",
        " redis://127.0.0.1:7001",
        "redis://127.0.0.1:port",
        "redis://127.0.0.1:99999",
        "redis://127.0.0.1:7001/0?socket_timeout=soon",
        "redis://127.0.0.1:7001/0?no_such_option=1",
        "redis://[::1:7001",
    ],
)
def test_f004_a_url_that_is_none_is_refused(url: str) -> None:
    """Bad schemes, ports and options are told when it is built, with the node's place in the list.

    The URL itself is not shown: whatever is wrong with it, a password may be in it.
    """
    with pytest.raises(ConfigurationError, match=r"nodes\[1\].* must "):
        Redlock([URLS[0], url])


@pytest.mark.parametrize("rest", ["127.0.0.1:port", "127.0.0.1:7001/0?db=x", "[::1:7001"])
def test_a_password_in_a_bad_url_is_not_shown(rest: str) -> None:
    """Neither the user's nor redis-py's words bring it into the text, or into the chain."""
    with pytest.raises(ConfigurationError) as caught:
        Redlock([f"redis://user:secret@{rest}"])
    seen: BaseException | None = caught.value
    while seen is not None:
        assert "secret" not in f"{seen} {seen.args}"
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("redis://127.0.0.1:7001", "redis://127.0.0.1:7001"),
        ("redis://127.0.0.1:7001/0", "redis://:pw@127.0.0.1:7001/5"),
        ("redis://localhost", "redis://LOCALHOST:6379"),
        ("redis://127.0.0.1:7001", "rediss://127.0.0.1:7001"),
        ("unix:///run/r.sock", "unix:///run/r.sock?db=1"),
    ],
)
def test_f003_equal_addresses_are_refused(one: str, other: str) -> None:
    """One server may never have two votes, however its address is written."""
    with pytest.raises(ConfigurationError, match=r"nodes .* and .* are the same address"):
        Redlock([one, "redis://127.0.0.1:7002", other])


def test_f003_an_existing_client_and_its_url_are_the_same_address() -> None:
    """It doesn't matter in which form a node is given."""
    existing = redis.asyncio.Redis(host="127.0.0.1", port=7001)
    with pytest.raises(ConfigurationError, match="same address"):
        Redlock([existing, URLS[0]])


# --- the rest ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [None, 42, len, lambda: None, "report"])
def test_only_async_functions_can_be_decorated(function: Any) -> None:
    """A plain function could not wait for the lock."""
    with pytest.raises(TypeError, match="async functions only"):
        lock()(function)


def test_values_at_the_edge_of_what_is_allowed_are_allowed() -> None:
    """What the errors call allowed is allowed."""
    client(ttl=0.013, wait=0, node_timeout=0.001, drift_factor=0, prefix="", restart_guard=0.5)
    client(ttl=2**53 / 1000, wait=None, drift_factor=0.5, restart_guard=True)
    client(ttl=timedelta(days=365), wait=timedelta(0), restart_guard=timedelta(seconds=1))
    for options in (
        {"wait": 0, "renew": False, "max_hold": None, "on_lost": "ignore"},
        {"wait": None, "max_hold": 10, "on_lost": "notify"},
        {"ttl": timedelta(seconds=1), "wait": 0.0, "max_hold": timedelta(seconds=1)},
    ):
        lock(**options)
    named("x")
    named(b"\xff\x00")
    named("\N{LOCK} " * 1000)
    RetryPolicy(floor=1e-9, cap=1e-9, growth=1, jitter=0)


@pytest.mark.parametrize("resource", [*NOT_NAME, *NO_NAME], ids=lambda x: f"{x!r:.30}")
async def test_looking_at_a_bad_name_is_refused_before_anything_is_sent(resource: Any) -> None:
    """`inspect` and `is_locked` judge the name as a lock does, before they connect."""
    redlock = client()
    for look in (redlock.inspect, redlock.is_locked):
        with pytest.raises((TypeError, ConfigurationError), match=r"^resource\b"):
            await look(resource)
    assert all(node.cause == "not connected yet" for node in redlock.nodes)


async def test_a_closed_client_refuses_everything() -> None:
    """After `aclose`, called twice: each use says that it was closed, and nothing is dialled."""
    redlock = client()
    before = redlock("invoice:42")
    await redlock.aclose()
    await redlock.aclose()

    async def enter(what: Any) -> None:
        async with what:
            raise AssertionError("entered")

    for use in (
        before.acquire,
        before.try_acquire,
        lambda: enter(before),
        lambda: enter(redlock),
        lambda: redlock("invoice:42").acquire(),
        lambda: redlock.inspect("invoice:42"),
        lambda: redlock.is_locked("invoice:42"),
    ):
        with pytest.raises(ConfigurationError, match=r"closed by aclose\(\): make a new one"):
            await use()


def test_a_use_outside_a_loop_is_refused() -> None:
    """What needs a loop says so."""
    with pytest.raises(ConfigurationError, match="running asyncio loop"):
        lock().acquire().send(None)
