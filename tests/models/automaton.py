"""The real client as an automaton: what it does next depends on what it was told, and on nothing else.

A client over three nodes, with its engine, watchdog and all, in virtual time. It is told one thing at a
time (`Input`): a call of its user, an answer of a node, a connection that breaks, a tick of the clock;
and it does what it does: requests to nodes, a lease that is held or not. Each state is reached by a
history of such inputs in a fresh client, and known again by `fingerprint`, so a step is taken once and
looked up afterwards. That makes it quick enough to explore two of them against each other (`real.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from aioredlock2 import AcquireError, Lease, LeaseError, Redlock
from aioredlock2._core.ballot import Ballot
from aioredlock2._node import Request
from aioredlock2.outcomes import Vote
from tests.support.model_node import ModelNode, ModelServer, Pipe, client
from tests.support.virtual import VirtualLoop, VirtualRuntime, settle

__all__ = ["NODES", "TTL", "Automaton", "Input", "Outcome"]

NODES = range(3)
TTL = 2
"""In ticks of one second; the margin for drift is smaller than one."""
NODE_TIMEOUT = 0.9
"""An answer that is a tick late is too late, as it is where timeouts are small beside the ttl."""

Input = tuple[Any, ...]
Sent = tuple[int, int, int]
"""Node, verb, and the number of the token."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A state, as seen from outside."""

    holds: bool
    may: tuple[str, ...]
    """What its user can call now."""
    at_rest: bool
    """Nothing is wanted any more: what it asked for is given back, or was never had."""


class _Nowhere(Pipe):
    """The explorer has what is under way."""

    def push(self, delay: float, action: Callable[[], None]) -> None:
        pass


class _Node(ModelNode):
    """Answers when it is told to."""

    pipe = _Nowhere

    def __init__(self, number: int, client_number: int, clock: Callable[[], float]) -> None:
        super().__init__(f"n{number}", ModelServer(clock))
        self.sent: list[Request] = []

    def ask(self, request: Request) -> None:
        before = self._asked
        super().ask(request)
        if self._asked > before:
            self.sent.append(request)

    def answer(self, vote: Vote) -> None:
        """The oldest open request is answered."""
        self._answer(next(iter(self._open)), vote, None)


class Driver:
    """One client, told things."""

    def __init__(self, number: int, make: Callable[[], None] | None = None) -> None:
        self.runner = asyncio.Runner(loop_factory=VirtualLoop)
        loop = self.runner.get_loop()
        assert isinstance(loop, VirtualLoop)
        self.loop = loop
        self.nodes = [_Node(at, number, loop.boottime) for at in NODES]
        self.tokens: list[bytes] = []
        self.calls: dict[str, asyncio.Task[Any]] = {}
        self.lease: Lease | None = None
        self.redlock: Redlock | None = None
        self.runner.run(self._open(number))

    async def _open(self, number: int) -> None:
        runtime = VirtualRuntime(self.loop, number)
        options = {"drift_factor": 0.0, "node_timeout": NODE_TIMEOUT}
        self.redlock = client(self.nodes, runtime, ttl=TTL, **options)
        self.redlock.session()
        await settle()

    def close(self) -> None:
        """Let go of it."""

        async def end() -> None:
            assert self.redlock is not None
            for task in self.calls.values():
                task.cancel()
            await self.redlock.aclose()
            await settle()

        self.runner.run(end())
        self.runner.close()

    def tell(self, what: Input) -> tuple[Sent, ...]:
        """Something happens; the requests that the client sends because of it, in order."""
        self.runner.run(self._tell(*what))
        sent = []
        for at, node in enumerate(self.nodes):
            for request in node.sent:
                if request.token not in self.tokens:
                    self.tokens.append(request.token)
                sent.append((at, int(request.verb), self.tokens.index(request.token)))
            node.sent.clear()
        return tuple(sent)

    async def _tell(self, what: str, *about: Any) -> None:
        match what:
            case "tick":
                await asyncio.sleep(1)
            case "answer":
                self.nodes[about[0]].answer(about[1])
            case "restart":
                self.nodes[about[0]].cut()
                self.nodes[about[0]].restore()
                self.nodes[about[0]].guard()
            case "guard over":
                self.nodes[about[0]].restore_vote()
            case "cancel":
                self.calls["acquire"].cancel()
            case _:
                self._call(what)
        await settle(5)
        acquired = self.calls.get("acquire")
        if acquired and self.lease is None and acquired.done() and not acquired.cancelled():
            if acquired.exception() is None:
                self.lease = acquired.result()
            else:
                assert isinstance(acquired.exception(), AcquireError)

    def _call(self, what: str) -> None:
        assert self.redlock is not None
        if what == "acquire":
            main: Any = self.redlock("x", renew=False).try_acquire()
        elif what == "extend":
            assert self.lease is not None
            main = self.lease.extend()
        else:
            assert self.lease is not None
            main = self.lease.release()
        self.calls[what] = self.loop.create_task(main)

    # Seen from outside.

    def outcome(self) -> Outcome:
        holds = self.lease is not None and self.lease.is_held
        acquired = self.calls.get("acquire")
        may = []
        if acquired is None:
            may.append("acquire")
        elif not acquired.done():
            may.append("cancel")
        if self.lease is not None and "release" not in self.calls:
            may.append("release")
            if holds and "extend" not in self.calls:
                may.append("extend")
        ended = acquired is not None and acquired.done()
        given_back = self.lease is None or self.lease.is_released
        return Outcome(holds, tuple(may), acquired is None or (ended and given_back))

    def fingerprint(self) -> object:
        """Equal for states from which it goes on in the same way."""
        now = self.loop.boottime()
        hold = None if self.lease is None else self.lease._hold
        scheduled: Any = self.loop
        timers = sorted(
            round(timer.when() - self.loop.time(), 6)
            for timer in scheduled._scheduled
            if not timer.cancelled()
        )
        return (
            tuple(timers),
            tuple((name, _end_of(task)) for name, task in self.calls.items()),
            tuple(self._node(node) for node in self.nodes),
            hold
            and (
                hold.state,
                round(max(hold.valid_until - now, 0), 6),  # what is over is over, however long
                round(max(hold.round.started_at - now, -TTL), 6),
                hold.sent_to,
                hold.at_gate,
                len(hold.extensions),
                _votes(hold.renewing),
                _votes(hold.latest),
                _votes(hold.revoked),
            ),
        )

    def _node(self, node: _Node) -> object:
        return (
            node.status.state,
            node._catch_up_to - node._asked,
            tuple(
                (int(request.verb), request.token, _votes(request.ballot))
                for request in node._open.values()
            ),
            tuple(node._owed),
        )


def _end_of(task: asyncio.Task[Any]) -> str:
    if not task.done():
        return "running"
    if task.cancelled():
        return "cancelled"
    assert isinstance(task.exception(), AcquireError | LeaseError | None)
    return type(task.exception() or task.result()).__name__


def _votes(ballot: Ballot | None) -> object:
    if ballot is None:
        return None
    return tuple(ballot.votes), ballot.unsent, ballot.verdict, ballot.withdrawn


class Automaton:
    """The states of one client that were seen so far, and the steps between them."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._known: dict[object, int] = {}
        self._histories: list[tuple[Input, ...]] = []
        self._steps: dict[tuple[int, Input], tuple[int, tuple[Sent, ...]]] = {}
        self.outcomes: list[Outcome] = []
        self.replays = 0
        self.start = self._reach(())[0]

    def step(self, state: int, what: Input) -> tuple[int, tuple[Sent, ...]]:
        """Where `what` leads from `state`, and what is sent."""
        taken = self._steps.get((state, what))
        if taken is None:
            taken = self._steps[state, what] = self._reach((*self._histories[state], what))
        return taken

    def _reach(self, history: tuple[Input, ...]) -> tuple[int, tuple[Sent, ...]]:
        self.replays += 1
        driver = Driver(self._number)
        sent: tuple[Sent, ...] = ()
        try:
            for what in history:
                sent = driver.tell(what)
            fingerprint = driver.fingerprint()
            state = self._known.setdefault(fingerprint, len(self._histories))
            if state == len(self._histories):
                self._histories.append(history)
                self.outcomes.append(driver.outcome())
        finally:
            driver.close()
        return state, sent
