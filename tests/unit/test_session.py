"""What a client has in one loop: answers to its nodes, pauses that end early, and a clean end."""

from __future__ import annotations

import asyncio
import math
import os
import threading

import pytest

from aioredlock2 import ConfigurationError, LeaseReleased, RetryPolicy
from aioredlock2._gate import ROUNDS_MAX
from aioredlock2._node import NodeState, Verb
from aioredlock2._session import Options, Session
from tests.support.holds import terms_of
from tests.support.model_node import ModelNode, Way, client, model_nodes, sent
from tests.support.scene import ROUND_TRIP, SLACK, hold_elsewhere, holders, nearby, now
from tests.support.virtual import VirtualRuntime, in_virtual_time, settle, the_loop


def session_of(nodes: list[ModelNode], *, ttl: float = 10, guard: float | bool = True) -> Session:
    options = Options(
        terms=terms_of(ttl),
        retry=RetryPolicy(),
        drift_factor=0.01,
        node_timeout=None,
        restart_guard=guard,
        probe_key=b"redlock:",
    )
    return Session(nodes, VirtualRuntime(the_loop()), options)


# --- what the nodes ask -------------------------------------------------------------------------


@in_virtual_time
async def test_f044_a_restarted_node_stays_out_for_the_largest_ttl_and_a_second() -> None:
    """Uptime comes in whole seconds."""
    assert session_of(model_nodes(1), guard=False).guard_period() is None
    assert session_of(model_nodes(1), guard=30.0).guard_period() == 31
    session = session_of(model_nodes(1), ttl=10)
    assert session.guard_period() == 11
    session.note_ttl(5)
    assert session.guard_period() == 11
    session.note_ttl(60)
    assert session.guard_period() == 61


@in_virtual_time
async def test_f044_nodes_are_judged_again_when_a_larger_ttl_is_asked_for() -> None:
    nodes = model_nodes(3)
    session = session_of(nodes, ttl=10)
    session.note_ttl(10)
    session.note_ttl(3)
    assert [node.regarded for node in nodes] == [0, 0, 0]
    session.note_ttl(20)
    assert [node.regarded for node in nodes] == [1, 1, 1]


@in_virtual_time
async def test_a_ttl_beyond_an_explicit_guard_is_warned_of_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    nodes = model_nodes(1)
    session = session_of(nodes, ttl=10, guard=30.0)
    session.note_ttl(30)
    assert not caplog.records
    session.note_ttl(31)
    session.note_ttl(60)
    (record,) = caplog.records
    assert "a lock with ttl 31 s is longer than the restart guard of 30 s" in record.getMessage()
    assert session.guard_period() == 31
    assert nodes[0].regarded == 0


@in_virtual_time
async def test_without_a_guard_any_ttl_is_fine(caplog: pytest.LogCaptureFixture) -> None:
    session = session_of(model_nodes(1), guard=False)
    session.note_ttl(10_000)
    assert not caplog.records


@in_virtual_time
async def test_f099_an_idle_client_dials_at_most_once_a_second() -> None:
    assert session_of(model_nodes(1)).redial_cap() == 1.0


@pytest.mark.parametrize(
    ("ttl", "cap"), [(0.1, 0.05), (0.5, 0.05), (2.0, 0.2), (9.0, 0.9), (60.0, 1.0)]
)
@in_virtual_time
async def test_whoever_holds_or_waits_makes_dialling_urgent(ttl: float, cap: float) -> None:
    """At least every max(50 ms, shortest ttl / 10)."""
    async with client(nearby(3)) as redlock:
        session = redlock.session()
        lease = await redlock("x", ttl=ttl).acquire()
        assert session.redial_cap() == pytest.approx(cap)
        await lease.release()
        await asyncio.sleep(1)
        assert session.redial_cap() == 1.0
        sleeping = asyncio.create_task(session.sleep(5, ttl, for_nodes=False))
        await settle()
        assert session.redial_cap() == pytest.approx(cap)
        sleeping.cancel()
        await settle()
        assert session.redial_cap() == 1.0


@in_virtual_time
async def test_f003_one_server_votes_once_whoever_came_first() -> None:
    one, other, third = nodes = model_nodes(3)
    session = session_of(nodes)
    assert session.claim(one, "server a") is None
    assert session.claim(other, "server a") == "n1"
    assert session.claim(third, "server b") is None
    assert session.claim(one, "server a") is None


@in_virtual_time
async def test_f003_a_node_that_moved_gives_its_old_server_up() -> None:
    one, other = nodes = model_nodes(2)
    session = session_of(nodes)
    assert session.claim(one, "server a") is None
    assert session.claim(one, "server b") is None
    assert session.claim(other, "server a") is None
    assert session.claim(one, "server a") == "n2"


@in_virtual_time
async def test_terms_follow_the_clients_settings() -> None:
    redlock = client(model_nodes(1), drift_factor=0.1, node_timeout=0.2)
    terms = redlock.session().terms(5)
    assert (terms.ttl_ms, terms.node_timeout) == (5000, 0.2)
    assert terms.drift == pytest.approx(0.502)
    with pytest.raises(ConfigurationError):
        redlock.session().terms(0.4)
    await redlock.aclose()


# --- contact and sleep --------------------------------------------------------------------------


@in_virtual_time
async def test_contact_is_met_when_a_quorum_can_vote() -> None:
    nodes = model_nodes(3)
    for node, dial in zip(nodes, (0.0, 1.0, 2.0), strict=True):
        node.dial = dial
    session = session_of(nodes)
    assert not session.met_quorum
    began_at = now()
    await session.contact(began_at + 5)
    assert now() - began_at == pytest.approx(1.0)
    assert session.met_quorum
    session.drop()


@in_virtual_time
async def test_contact_ends_when_every_node_was_tried() -> None:
    """Waiting longer would not tell more."""
    nodes = model_nodes(3, dial=math.inf)
    session = session_of(nodes)
    began_at = now()
    for number, node in enumerate(nodes):
        the_loop().call_later(0.1 + number / 10, node.cut, "connection refused")
    await session.contact(began_at + 5)
    assert now() - began_at == pytest.approx(0.3)
    assert {node.status.state for node in nodes} == {NodeState.DOWN}


@pytest.mark.parametrize(("patience", "took"), [(0, 0.5), (0.1, 0.5), (3, 3)])
@in_virtual_time
async def test_contact_ends_with_the_callers_patience_or_the_first_half_second(
    patience: float, took: float
) -> None:
    session = session_of(model_nodes(3, dial=math.inf))
    began_at = now()
    await session.contact(began_at + patience)
    assert now() - began_at == pytest.approx(took)
    await session.contact(now())
    assert now() - began_at == pytest.approx(took)


@in_virtual_time
async def test_a_sleep_lasts_as_long_as_it_was_meant_to() -> None:
    nodes = model_nodes(3)
    session = session_of(nodes)
    began_at = now()
    sleeping = asyncio.create_task(session.sleep(0.5, 10, for_nodes=False))
    await settle()
    nodes[0].cut()
    nodes[0].restore()
    await sleeping
    assert now() - began_at == pytest.approx(0.5)
    await session.sleep(-1, 10, for_nodes=False)
    assert now() - began_at == pytest.approx(0.5)
    assert [node.hurried for node in nodes] == [0, 0, 0]


@in_virtual_time
async def test_a_sleep_for_nodes_hurries_them_and_ends_when_one_comes() -> None:
    nodes = model_nodes(3)
    session = session_of(nodes)
    for node in nodes:
        node.cut()
    began_at = now()
    the_loop().call_later(0.2, nodes[1].restore)
    await session.sleep(60, 10, for_nodes=True)
    assert now() - began_at == pytest.approx(0.2)
    assert [node.hurried for node in nodes] == [1, 1, 1]


@in_virtual_time
async def test_two_reasons_to_wake_are_as_good_as_one() -> None:
    nodes = model_nodes(3)
    session = session_of(nodes)
    for node in nodes:
        node.cut()
    for node in nodes:
        the_loop().call_later(0.2, node.restore)
    await session.sleep(0.2, 10, for_nodes=True)
    await settle()


@in_virtual_time
async def test_a_cancelled_sleep_leaves_nothing_behind() -> None:
    session = session_of(model_nodes(1))
    sleeping = asyncio.create_task(session.sleep(60, 0.1, for_nodes=True))
    await settle()
    sleeping.cancel()
    await settle()
    assert the_loop().timers == 0
    assert session.redial_cap() == 1.0


# --- where it may be used -----------------------------------------------------------------------


@in_virtual_time
async def test_f085_another_thread_or_loop_is_told_so() -> None:
    session = session_of(model_nodes(1))
    assert session.check_here("release it") is the_loop()
    errors: list[str] = []

    def elsewhere() -> None:
        async def inside() -> None:
            with pytest.raises(ConfigurationError) as caught:
                session.check_here("release it")
            errors.append(str(caught.value))

        with pytest.raises(ConfigurationError) as caught:
            session.check_here("release it")
        errors.append(str(caught.value))
        asyncio.run(inside())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(errors) == 2
    assert all("can't release it from another thread or event loop" in error for error in errors)


@in_virtual_time
async def test_a_forked_child_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    session = session_of(model_nodes(1))
    assert session.is_here
    monkeypatch.setattr(os, "getpid", lambda: session.pid + 1)
    assert not session.is_here
    with pytest.raises(ConfigurationError, match="can't release it after a fork"):
        session.check_here("release it")


# --- the end ------------------------------------------------------------------------------------


@in_virtual_time
async def test_f088_closing_lets_the_deletes_out_before_it_hangs_up() -> None:
    nodes = nearby()
    redlock = client(nodes)
    lease = await redlock("x").acquire()
    await redlock.aclose()
    assert holders(nodes) == [None] * 5
    assert lease.is_released
    assert {node.status.cause for node in nodes} == {"the client is closed"}


@in_virtual_time
async def test_f088_closing_with_frozen_nodes_takes_two_node_timeouts_at_most() -> None:
    nodes = nearby()
    redlock = client(nodes)
    lease = await redlock("x").acquire()
    for node in nodes:
        node.server.freeze()
    began_at = now()
    await redlock.aclose()
    assert lease.is_released
    assert now() - began_at <= 2 * 0.05 + SLACK


@pytest.mark.parametrize("how", ["closed", "close cancelled"])
@pytest.mark.parametrize("call", ["acquire", "extend", "release"])
@in_virtual_time
async def test_closing_ends_every_call_that_waits_for_a_round(call: str, how: str) -> None:
    """Also if that round would listen longer than the client's own node timeout."""
    nodes = nearby(3)
    redlock = client(nodes, ttl=0.5)
    lease = None if call == "acquire" else await redlock("x", ttl=10).acquire()
    await settle()
    for node in nodes:
        node.server.freeze()
    waits = redlock("x", ttl=10).acquire() if lease is None else getattr(lease, call)()
    task = asyncio.create_task(waits)
    await settle()
    closing = asyncio.create_task(redlock.aclose())
    await settle(1)
    if how == "close cancelled":
        closing.cancel()
    await asyncio.wait([closing])
    await asyncio.wait([task], timeout=1)
    assert task.done()
    if call == "release":
        assert task.exception() is None
    else:
        assert isinstance(task.exception(), LeaseReleased if lease else ConfigurationError)


@in_virtual_time
async def test_f088_closing_turns_everybody_away() -> None:
    """In a pause, in the local queue, in the first contact; all with the same error."""
    nodes = nearby()
    hold_elsewhere(nodes)
    redlock = client(nodes)
    tasks = [asyncio.create_task(redlock("x", wait=None).acquire()) for _ in range(3)]
    await asyncio.sleep(ROUND_TRIP + 0.001)
    distant = client(model_nodes(3, dial=math.inf))
    tasks.append(asyncio.create_task(distant("x").acquire()))
    await settle()
    began_at = now()
    await redlock.aclose()
    await distant.aclose()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(end, ConfigurationError)
        assert "closed by aclose()" in str(end)
    assert now() - began_at <= 2 * ROUND_TRIP + SLACK


@pytest.mark.parametrize("turns", range(8))
@in_virtual_time
async def test_f088_closing_in_any_turn_around_the_win_leaves_no_key(turns: int) -> None:
    """The answers are on their way, or there, or the caller has them, or has its lease."""
    nodes = nearby(3)
    redlock = client(nodes)
    task = asyncio.create_task(redlock("x").acquire())
    await asyncio.sleep(ROUND_TRIP - 0.0001)
    the_loop().block(0.0001)
    for _ in range(turns):
        await asyncio.sleep(0)
    closing = asyncio.create_task(redlock.aclose())
    (end,) = await asyncio.gather(task, return_exceptions=True)
    await closing
    if isinstance(end, BaseException):
        assert isinstance(end, ConfigurationError)
    else:
        assert end.is_released
    assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_callers_at_the_gate_send_nothing_once_the_client_closes() -> None:
    nodes = nearby(3)
    redlock = client(nodes)
    tasks = [
        asyncio.create_task(redlock(f"x{number}").acquire()) for number in range(ROUNDS_MAX + 88)
    ]
    await asyncio.sleep(ROUND_TRIP / 2)
    await redlock.aclose()
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert all(isinstance(end, ConfigurationError) for end in ends)
    assert [len(grants) for grants in sent(nodes, Verb.GRANT)] == [ROUNDS_MAX] * 3
    await asyncio.sleep(1)
    for node in nodes:
        keys = {asked.key for asked in node.asked if asked.verb is Verb.GRANT}
        assert {node.server.get(key) for key in keys} == {None}


@in_virtual_time
async def test_dropping_lets_go_of_everything_at_once() -> None:
    nodes = nearby(3)
    session = session_of(nodes)
    nodes[0].way = Way(back=0.04)
    looked = session.engine.inspect(b"redlock:x", 0.05)
    session.drop()
    assert session.closed
    assert looked.unheard == 0
    assert {node.status.cause for node in nodes} == {"the client is closed"}
    assert the_loop().timers == 0
    with pytest.raises(ConfigurationError, match="closed by aclose"):
        session.check_open()
