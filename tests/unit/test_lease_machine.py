"""F124: whatever is called in whatever order, while nodes and clocks misbehave, a lease is in one state.

Two clients over the same three servers, in virtual time. Hypothesis draws calls and faults; after each
step the states are compared with what was seen before, and with what the nodes were sent.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aioredlock2 import (
    AcquiredTooLate,
    Lease,
    LeaseLost,
    LeaseReleased,
    QuorumUnreachable,
    Redlock,
)
from aioredlock2._node import Verb
from tests.support.model_node import ModelNode, ModelServer, Way, client
from tests.support.scene import FOREIGN, KEY, SLACK
from tests.support.virtual import VirtualLoop, VirtualRuntime, settle

NODES = 3
CLIENTS = (0, 1)
TTL = 2.0
OUTCOMES = {"clean", "expired", "lost", "unknown"}


@dataclass(eq=False)
class Seen:
    """A lease and what was last seen of it."""

    lease: Lease
    token: bytes
    state: str = "held"
    ended_at: float | None = None


def state_of(lease: Lease) -> str:
    """The one state that it says it is in."""
    said = {"held": lease.is_held, "lost": lease.is_lost, "released": lease.is_released}
    (state,) = (name for name, true in said.items() if true)
    assert f"{lease!r} "[len("<Lease 'x' ") :].startswith(state)
    return state


class LeaseMachine(RuleBasedStateMachine):
    """Calls and faults."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[dict[str, Any]] = []
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        loop = self.runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        loop.set_exception_handler(lambda _, context: self.heard.append(context))
        self.servers = [ModelServer(loop.boottime) for _ in range(NODES)]
        self.nodes = [
            [ModelNode(f"n{n}", server) for n, server in enumerate(self.servers)] for _ in CLIENTS
        ]
        self.clients: list[Redlock] = []
        self.leases: list[Seen] = []
        self.forgot = False
        """True once a node lost a key: from then on nobody promises exclusion."""

    @initialize()
    def build(self) -> None:
        async def make() -> None:
            for number in CLIENTS:
                runtime = VirtualRuntime(self.loop, number)
                self.clients.append(client(self.nodes[number], runtime, ttl=TTL))

        self.runner.run(make())

    def held_by(self, number: int) -> list[Seen]:
        return [seen for seen in self.leases if seen.lease._client is self.clients[number]]

    # Calls.

    @rule(number=st.sampled_from(CLIENTS), renew=st.booleans(), ttl=st.sampled_from([0.5, TTL, 10]))
    def try_acquire(self, number: int, renew: bool, ttl: float) -> None:
        lock = self.clients[number]("x", renew=renew, ttl=ttl)
        try:
            lease = self.runner.run(lock.try_acquire())
        except (QuorumUnreachable, AcquiredTooLate):
            return
        if lease is not None:
            self.leases.append(Seen(lease, lease._hold.token))

    @precondition(lambda self: self.leases)
    @rule(data=st.data(), ttl=st.sampled_from([None, 0.5, TTL, 10]))
    def extend(self, data: st.DataObject, ttl: float | None) -> None:
        seen = data.draw(st.sampled_from(self.leases))
        before = state_of(seen.lease)
        try:
            self.runner.run(seen.lease.extend(ttl))
        except LeaseLost:
            assert before != "released"
            assert seen.lease.is_lost
        except LeaseReleased:
            assert before == "released"
        else:
            assert before == "held"
            assert seen.lease.is_held

    @precondition(lambda self: self.leases)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        seen = data.draw(st.sampled_from(self.leases))
        before = state_of(seen.lease)
        report = self.runner.run(seen.lease.release())
        assert report.outcome in OUTCOMES
        assert state_of(seen.lease) == ("lost" if before == "lost" else "released")

    # Time.

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.7, 3.0]))
    def wait(self, seconds: float) -> None:
        self.runner.run(asyncio.sleep(seconds))

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.5]))
    def suspend(self, seconds: float) -> None:
        self.loop.suspend(seconds)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.5]))
    def block(self, seconds: float) -> None:
        self.loop.block(seconds)

    # Faults.

    @rule(node=st.integers(0, NODES - 1))
    def freeze(self, node: int) -> None:
        self.servers[node].freeze()

    @rule(node=st.integers(0, NODES - 1))
    def thaw(self, node: int) -> None:
        self.servers[node].thaw()

    @rule(number=st.sampled_from(CLIENTS), node=st.integers(0, NODES - 1), arrives=st.booleans())
    def cut(self, number: int, node: int, arrives: bool) -> None:
        self.runner.run(self.in_loop(lambda: self.nodes[number][node].cut(arrives=arrives)))

    @rule(number=st.sampled_from(CLIENTS), node=st.integers(0, NODES - 1))
    def restore(self, number: int, node: int) -> None:
        self.runner.run(self.in_loop(self.nodes[number][node].restore))

    @rule(
        node=st.integers(0, NODES - 1),
        there=st.sampled_from([0.0, 0.001, 0.02]),
        back=st.sampled_from([0.0, 0.001, 0.02]),
        fault=st.sampled_from(["", "", "LOADING"]),
    )
    def change(self, node: int, there: float, back: float, fault: str) -> None:
        for nodes in self.nodes:
            nodes[node].way = Way(there, back, fault)

    @rule(node=st.integers(0, NODES - 1), how=st.sampled_from(["wipe", "overwrite"]))
    def forget(self, node: int, how: str) -> None:
        self.forgot = True
        if how == "wipe":
            self.servers[node].wipe()
        else:
            self.servers[node].put(KEY, FOREIGN, 0.5)

    @staticmethod
    async def in_loop(action: Any) -> None:
        action()
        await settle()

    # What must always be so.

    @invariant()
    def nothing_comes_back(self) -> None:
        for seen in self.leases:
            state = state_of(seen.lease)
            if seen.state != "held":
                assert state == seen.state
            elif state != "held":
                seen.ended_at = self.loop.boottime()
            seen.state = state
            assert (seen.lease.remaining() > 0) == (state == "held")

    @invariant()
    def one_at_most_is_held(self) -> None:
        held = [seen.lease for seen in self.leases if seen.lease.is_held]
        assert self.forgot or len(held) <= 1

    @invariant()
    def the_dead_are_only_deleted(self) -> None:
        """Requests put to a node after the end of a lease, with its token, are deletes."""
        for seen in self.leases:
            if seen.ended_at is not None:
                for asked in (
                    asked for nodes in self.nodes for node in nodes for asked in node.asked
                ):
                    if asked.token == seen.token and asked.at > seen.ended_at + SLACK:
                        assert asked.verb is Verb.REVOKE

    @invariant()
    def nothing_reaches_the_loop(self) -> None:
        assert not self.heard

    def teardown(self) -> None:
        async def end() -> None:
            for server in self.servers:
                server.thaw()
            for nodes in self.nodes:
                for node in nodes:
                    node.way = Way()
                    node.restore()
            for seen in self.leases:
                await seen.lease.release()
            for redlock in self.clients:
                await redlock.aclose()
            await asyncio.sleep(11)

        self.runner.run(end())
        assert all(server.get(KEY) is None for server in self.servers)
        self.nothing_comes_back()
        self.nothing_reaches_the_loop()
        self.runner.close()


TestLeaseMachine = LeaseMachine.TestCase
TestLeaseMachine.settings = settings(max_examples=60, stateful_step_count=50)
