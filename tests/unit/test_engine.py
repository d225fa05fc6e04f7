"""Rounds: asked of all nodes at once, decided as early as they can be, cleaned up behind."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2 import ConfigurationError
from aioredlock2._core.ballot import Verdict
from aioredlock2._engine import Engine, Round
from aioredlock2._gate import ROUNDS_MAX
from aioredlock2._node import Request, Sighting, Verb
from aioredlock2.outcomes import NodeOutcome, Vote
from tests.support.holds import terms_of
from tests.support.model_node import LOST, MUTE, LoneHost, ModelNode, Way, model_nodes, sent
from tests.support.scene import KEY, holders
from tests.support.virtual import VirtualRuntime, in_virtual_time, run, settle, the_loop

TERMS = terms_of(10)  # listens 50 ms to a node
G, D, F, M, P = Vote.GRANTED, Vote.DENIED, Vote.FAULTED, Vote.MISSING, Vote.PENDING


def engine_of(nodes: Sequence[ModelNode]) -> Engine:
    runtime = VirtualRuntime(the_loop())
    for index, node in enumerate(nodes):
        node.open(LoneHost(runtime), index)
    return Engine(nodes, runtime, the_loop())


def ways(nodes: Sequence[ModelNode], *delays: float) -> None:
    """How long each node's answer takes."""
    for node, delay in zip(nodes, delays, strict=True):
        node.way = Way(back=delay)


async def timed(engine: Engine) -> tuple[Round, float]:
    """A round and how long it took."""
    started_at = the_loop().time()
    asked = await engine.grant(KEY, TERMS)
    return asked, the_loop().time() - started_at


# --- grant: when it is decided -----------------------------------------------------------------


@in_virtual_time
async def test_f012_a_round_is_won_at_the_quorum_th_yes() -> None:
    """The stragglers don't delay it, and their answers are still written down."""
    nodes = model_nodes(5)
    ways(nodes, 0.001, 0.040, 0.003, 0.041, 0.002)
    asked, took = await timed(engine_of(nodes))
    assert asked.verdict is Verdict.WON
    assert took == pytest.approx(0.003)
    assert asked.votes == [G, P, G, P, G]
    await asyncio.sleep(0.05)
    assert asked.votes == [G] * 5


@in_virtual_time
async def test_a_round_is_lost_when_no_quorum_can_come_any_more() -> None:
    nodes = model_nodes(5)
    ways(nodes, 0.001, 0.002, 0.003, 0.040, 0.040)
    for node in nodes[:3]:
        node.server.put(KEY, b"foreign", 60)
    asked, took = await timed(engine_of(nodes))
    assert asked.verdict is Verdict.REFUSED
    assert took == pytest.approx(0.003)


@pytest.mark.parametrize("way", [LOST, MUTE])
@in_virtual_time
async def test_f019_a_round_never_waits_longer_than_the_node_timeout(way: Way) -> None:
    nodes = model_nodes(5)
    for node in nodes[1:]:
        node.way = way
    asked, took = await timed(engine_of(nodes))
    assert asked.verdict is Verdict.UNREACHABLE
    assert took == pytest.approx(TERMS.node_timeout)
    assert asked.votes == [G, M, M, M, M]
    assert asked.causes[1:] == ["no answer in time"] * 4


@in_virtual_time
async def test_a_node_that_missed_its_deadline_is_told() -> None:
    """It is asked for nothing but deletes until it has caught up."""
    nodes = model_nodes(3)
    nodes[0].server.freeze()
    engine = engine_of(nodes)
    first = await engine.grant(KEY, TERMS)
    await asyncio.sleep(TERMS.node_timeout + 0.001)
    assert first.votes[0] is M
    second = await engine.grant(KEY, TERMS)
    assert second.votes[0] is M
    assert second.unsent == 0b001
    nodes[0].server.thaw()
    await settle()
    third = await engine.grant(b"other", TERMS)
    assert third.unsent == 0


@in_virtual_time
async def test_nodes_are_not_asked_once_those_before_them_have_decided() -> None:
    nodes = model_nodes(5)
    engine = engine_of(nodes)
    for node in nodes[:3]:
        node.cut("connection refused")
    asked = await engine.grant(KEY, TERMS)
    assert asked.verdict is Verdict.UNREACHABLE
    assert asked.unsent == 0b11111
    assert [len(requests) for requests in sent(nodes, Verb.GRANT)] == [0] * 5
    assert engine.sent_to(asked) == 0
    await asyncio.sleep(TERMS.node_timeout + 0.001)
    assert the_loop().timers == 0
    for node in nodes[:3]:
        node.restore()
    assert (await engine.grant(KEY, TERMS)).verdict is Verdict.WON, "nobody missed a deadline"


@in_virtual_time
async def test_nodes_that_are_down_say_so_though_the_others_have_decided() -> None:
    """For whoever reads the error: all causes are there, not only the first three."""
    nodes = model_nodes(5)
    engine = engine_of(nodes)
    for node in nodes:
        node.cut("connection refused")
    asked = await engine.grant(KEY, TERMS)
    assert asked.causes == ["connection refused"] * 5
    assert the_loop().timers == 0


# --- grant: what is asked -----------------------------------------------------------------------


@in_virtual_time
async def test_every_round_has_a_token_of_its_own_and_the_whole_ttl() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    for _ in range(3):
        engine.clean_up(await engine.grant(KEY, TERMS))
    for requests in sent(nodes, Verb.GRANT):
        assert [(each.key, each.ttl_ms) for each in requests] == [(KEY, 10_000)] * 3
        assert len({each.token for each in requests}) == 3
    assert len({each.token for requests in sent(nodes, Verb.GRANT) for each in requests}) == 3


class SlowToWrite(ModelNode):
    """Takes its time before the bytes leave."""

    def ask(self, request: Request) -> None:
        the_loop().block(0.010)
        super().ask(request)


@in_virtual_time
async def test_h03_a_round_began_before_its_first_byte_left() -> None:
    """Writing takes time too, and it is the holder's loss, never its gain."""
    nodes = [SlowToWrite(node.name, node.server) for node in model_nodes(3)]
    engine = engine_of(nodes)
    now = engine.runtime.clock()
    asked = await engine.grant(KEY, TERMS)
    assert asked.started_at == now
    await settle(4)
    now = engine.runtime.clock()
    request = Request(Verb.RENEW, KEY, asked.token, 10_000)
    assert engine.gate.enter_now()
    renewal = engine.renew(request, on_decided=lambda _: None, on_closed=lambda _: None)
    engine.send(request, TERMS.node_timeout)
    assert renewal.started_at == now
    await asyncio.sleep(1)


# --- clean-up -----------------------------------------------------------------------------------


@in_virtual_time
async def test_f008_a_lost_round_is_taken_back_wherever_its_set_may_have_gone() -> None:
    """Everywhere but where it was refused or never sent; behind the SET, with its token."""
    nodes = model_nodes(6)
    granted, denied, faulted, missing, unsent, other = nodes
    denied.server.put(KEY, b"foreign", 60)
    other.server.put(KEY, b"foreign", 60)
    faulted.way = Way(fault="LOADING")
    missing.way = MUTE
    engine = engine_of(nodes)
    unsent.cut()
    asked = await engine.grant(KEY, TERMS)
    assert asked.votes == [G, D, F, P, F, D]
    engine.clean_up(asked)
    assert [len(requests) for requests in sent(nodes, Verb.REVOKE)] == [1, 0, 1, 1, 0, 0]
    for node in (granted, faulted, missing):
        grant, revoke = node.asked
        assert (grant.verb, revoke.verb) == (Verb.GRANT, Verb.REVOKE)
        assert grant.token == revoke.token
        assert revoke.ballot is None
    await settle()
    assert holders(nodes) == [None, b"foreign", None, None, None, b"foreign"]


@in_virtual_time
async def test_a_round_is_taken_back_once() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    asked = await engine.grant(KEY, TERMS)
    engine.clean_up(asked)
    engine.clean_up(asked)
    assert asked.withdrawn
    assert [len(requests) for requests in sent(nodes, Verb.REVOKE)] == [1, 1, 1]


@in_virtual_time
async def test_the_clean_up_of_a_straggler_waits_behind_its_set() -> None:
    nodes = model_nodes(3)
    nodes[0].server.freeze()
    nodes[1].server.put(KEY, b"foreign", 60)
    nodes[2].server.put(KEY, b"foreign", 60)
    engine = engine_of(nodes)
    engine.clean_up(await engine.grant(KEY, TERMS))
    await asyncio.sleep(1)
    nodes[0].server.thaw()
    assert holders(nodes)[0] is None


@given(
    turns=st.integers(0, 12), delays=st.lists(st.sampled_from([0.0, 0.001]), min_size=5, max_size=5)
)
def test_f047_h22_cancelled_at_any_moment_a_round_leaves_no_key(
    turns: int, delays: list[float]
) -> None:
    """Either the round is handed over or CancelledError comes out and everything is taken back."""

    async def main() -> None:
        nodes = model_nodes(5)
        ways(nodes, *delays)
        engine = engine_of(nodes)
        task = asyncio.create_task(engine.grant(KEY, TERMS))
        for _ in range(turns):
            await asyncio.sleep(0 if turns % 2 else 0.0003)
        if task.done():
            engine.clean_up(task.result())
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.sleep(0.1)
        assert holders(nodes) == [None] * 5
        for grants, revokes in zip(sent(nodes, Verb.GRANT), sent(nodes, Verb.REVOKE), strict=True):
            assert [each.token for each in grants] == [each.token for each in revokes]
        for _ in range(ROUNDS_MAX):
            assert engine.gate.enter_now()

    run(main())


@in_virtual_time
async def test_f078_h23_cancelled_in_the_very_turn_it_is_won_it_is_taken_back() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    task = asyncio.create_task(engine.grant(KEY, TERMS))
    await settle(1)
    asked = nodes[0].asked[0].ballot
    assert isinstance(asked, Round)
    while asked.verdict is Verdict.PENDING:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await settle()
    assert holders(nodes) == [None] * 3


# --- the gate -----------------------------------------------------------------------------------


def fill(engine: Engine) -> None:
    while engine.gate.enter_now():
        pass


@in_virtual_time
async def test_a_round_beyond_the_bound_waits_and_counts_from_when_it_is_sent() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    fill(engine)
    task = asyncio.create_task(engine.grant(KEY, TERMS))
    await asyncio.sleep(5)
    assert not nodes[0].asked
    now = engine.runtime.clock()
    engine.gate.leave()
    asked = await task
    assert asked.started_at == now


@in_virtual_time
async def test_cancelled_at_the_gate_nothing_was_sent() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    fill(engine)
    task = asyncio.create_task(engine.grant(KEY, TERMS))
    await settle()
    task.cancel()
    await settle()
    assert task.cancelled()
    assert not nodes[0].asked


@in_virtual_time
async def test_a_place_is_free_again_at_the_verdict_not_at_the_last_vote() -> None:
    nodes = model_nodes(3)
    ways(nodes, 0, 0, 0.04)
    engine = engine_of(nodes)
    fill(engine)
    engine.gate.leave()
    await engine.grant(KEY, TERMS)
    assert engine.gate.enter_now()
    assert not engine.gate.enter_now()
    await asyncio.sleep(1)
    assert not engine.gate.enter_now()


# --- renew --------------------------------------------------------------------------------------


@in_virtual_time
async def test_a_renewal_tells_when_it_is_decided_and_when_all_were_heard() -> None:
    nodes = model_nodes(5)
    engine = engine_of(nodes)
    won = await engine.grant(KEY, TERMS)
    await settle(5)
    ways(nodes, 0.001, 0.002, 0.003, 0.004, 0.5)
    told: list[tuple[str, float]] = []
    began_at = the_loop().time()

    def tell(what: str, _: Round) -> None:
        told.append((what, the_loop().time() - began_at))

    assert engine.gate.enter_now()
    request = Request(Verb.RENEW, KEY, won.token, 20_000)
    renewal = engine.renew(
        request,
        on_decided=lambda asked: tell("decided", asked),
        on_closed=lambda asked: tell("closed", asked),
    )
    assert not any(sent(nodes, Verb.RENEW))
    engine.send(request, TERMS.node_timeout)
    assert renewal.verdict is Verdict.PENDING
    await asyncio.sleep(1)
    assert [what for what, _ in told] == ["decided", "closed"]
    assert [at for _, at in told] == pytest.approx([0.003, TERMS.node_timeout])
    assert renewal.votes == [G, G, G, G, M]
    stored = nodes[0].server.get(KEY)
    assert stored is not None
    assert stored[1] == pytest.approx(19, abs=0.01)


@in_virtual_time
async def test_a_renewal_with_nobody_there_is_decided_before_it_returns() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    for node in nodes:
        node.cut()
    told: list[str] = []
    assert engine.gate.enter_now()
    request = Request(Verb.RENEW, KEY, b"token", 10_000)
    renewal = engine.renew(
        request,
        on_decided=lambda _: told.append("decided"),
        on_closed=lambda _: told.append("closed"),
    )
    engine.send(request, TERMS.node_timeout)
    assert renewal.verdict is Verdict.UNREACHABLE
    assert told == ["decided", "closed"]
    assert the_loop().timers == 0


# --- revoke, inspect ----------------------------------------------------------------------------


@in_virtual_time
async def test_a_release_goes_where_the_token_may_be() -> None:
    nodes = model_nodes(5)
    engine = engine_of(nodes)
    won = await engine.grant(KEY, TERMS)
    await settle()
    revoked = engine.revoke(KEY, won.token, TERMS, 20_000, 0b10111)
    assert [len(requests) for requests in sent(nodes, Verb.REVOKE)] == [1, 1, 1, 0, 1]
    assert nodes[0].asked[-1].ttl_ms == 20_000
    await revoked.decided(the_loop())
    await settle()
    assert revoked.verdict is Verdict.WON
    assert revoked.votes == [G, G, G, F, G]
    assert revoked.causes[3] == "never sent"


@in_virtual_time
async def test_a_release_with_frozen_nodes_takes_one_node_timeout() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    won = await engine.grant(KEY, TERMS)
    await settle()
    for node in nodes[:2]:
        node.server.freeze()
    began_at = the_loop().time()
    revoked = engine.revoke(KEY, won.token, TERMS, 10_000, 0b111)
    await revoked.decided(the_loop())
    assert the_loop().time() - began_at == pytest.approx(TERMS.node_timeout)
    assert revoked.verdict is Verdict.UNREACHABLE


@in_virtual_time
async def test_an_inspection_hears_every_node() -> None:
    nodes = model_nodes(3)
    ways(nodes, 0, 0.02, 0)
    nodes[2].server.put(KEY, b"foreign", 7)
    nodes[1].way = Way(fault="LOADING")
    engine = engine_of(nodes)
    looked = engine.inspect(KEY, 0.05)
    await looked.decided(the_loop())
    assert looked.verdict is Verdict.WON
    assert looked.causes == [None, "LOADING", Sighting(b"foreign", 7000)]
    assert [outcome.cause for outcome in engine.outcomes(looked)] == ["", "LOADING", ""]


@in_virtual_time
async def test_outcomes_name_the_nodes() -> None:
    nodes = model_nodes(3)
    nodes[1].way = Way(fault="MISCONF")
    nodes[2].way = Way(back=0.01)
    engine = engine_of(nodes)
    asked = await engine.grant(KEY, TERMS)
    assert engine.outcomes(asked) == (
        NodeOutcome("n1", G),
        NodeOutcome("n2", F, "MISCONF"),
        NodeOutcome("n3", G),
    )


@in_virtual_time
async def test_several_may_wait_for_one_round() -> None:
    nodes = model_nodes(3)
    ways(nodes, 0.01, 0.01, 0.01)
    engine = engine_of(nodes)
    looked = engine.inspect(KEY, 0.05)
    waiters = [asyncio.create_task(looked.decided(the_loop())) for _ in range(3)]
    await settle()
    waiters[1].cancel()
    await asyncio.gather(waiters[0], waiters[2])
    await looked.decided(the_loop())
    assert waiters[1].cancelled()


# --- the end ------------------------------------------------------------------------------------


@in_virtual_time
async def test_closing_takes_back_what_is_being_asked_for() -> None:
    nodes = model_nodes(3)
    for node in nodes:
        node.server.freeze()
    engine = engine_of(nodes)
    task = asyncio.create_task(engine.grant(KEY, TERMS))
    looked = engine.inspect(KEY, 0.05)
    await settle()
    engine.close()
    assert [len(requests) for requests in sent(nodes, Verb.REVOKE)] == [1, 1, 1]
    asked = await task
    assert asked.verdict is Verdict.UNREACHABLE
    assert asked.withdrawn
    assert looked.verdict is Verdict.UNREACHABLE
    for node in nodes:
        node.server.thaw()
    assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_closing_leaves_a_round_that_is_decided_as_it_is() -> None:
    nodes = model_nodes(3)
    nodes[2].way = Way(back=0.02)
    engine = engine_of(nodes)
    asked = await engine.grant(KEY, TERMS)
    engine.close()
    assert asked.verdict is Verdict.WON
    assert not asked.withdrawn
    await asyncio.sleep(0.03)
    assert asked.votes == [G] * 3


@in_virtual_time
async def test_nobody_gets_past_the_gate_of_a_closed_engine() -> None:
    nodes = model_nodes(3)
    engine = engine_of(nodes)
    fill(engine)
    tasks = [asyncio.create_task(engine.grant(KEY, TERMS)) for _ in range(3)]
    await settle()
    engine.close()
    engine.gate.leave()
    for end in await asyncio.gather(*tasks, return_exceptions=True):
        assert isinstance(end, ConfigurationError)
    assert not nodes[0].asked


@pytest.mark.parametrize("wake", [True, False])
@in_virtual_time
async def test_dropping_sends_nothing_and_wakes_whoever_waits_if_there_can_be_anybody(
    wake: bool,
) -> None:
    """In a forked child, or when the loop is closed, the waiters are not ours to wake."""
    nodes = model_nodes(3)
    for node in nodes:
        node.server.freeze()
    engine = engine_of(nodes)
    task = asyncio.create_task(engine.grant(KEY, TERMS))
    await settle()
    engine.drop(wake=wake)
    assert the_loop().timers == 0
    await settle()
    assert task.done() == wake
    assert not any(sent(nodes, Verb.REVOKE))
    if wake:
        assert task.result().verdict is Verdict.UNREACHABLE
    task.cancel()
