"""What the simulated users do: take locks in every way there is, and note what they were told."""

from __future__ import annotations

import asyncio
import random

from aioredlock2 import (
    AcquireError,
    ConfigurationError,
    LeaseError,
    LeaseLost,
    Redlock,
    RetryPolicy,
)
from aioredlock2._core.lease_state import LOST
from aioredlock2._lease import Lease
from aioredlock2._lock import Lock
from aioredlock2._nodes.redis import RedisNode
from tests.simulation.history import Attempt, History, Stalls, Tenure
from tests.simulation.network import Network, SimDialer
from tests.simulation.options import Options
from tests.simulation.process import Process, SimRuntime
from tests.simulation.words import PROBE_KEY

__all__ = ["Client"]

DROPPED = 0.02
EXTENDED = 0.2
TURNS_TO_CANCEL = 12


class Client:
    """One process with a `Redlock` over all servers, and some tasks that use it."""

    def __init__(
        self, process: Process, network: Network, history: History, options: Options
    ) -> None:
        self.process = process
        self._network = network
        self._history = history
        self._options = options
        self._rng = random.Random(f"{options.seed} {process.name} workload")
        self._attempts: dict[asyncio.Task[object], Attempt] = {}
        self._watched: dict[Tenure, Lease] = {}
        self.stopping = False
        self.closed = False
        self.tasks: list[asyncio.Task[None]] = []
        self._calls: set[asyncio.Task[None]] = set()
        process.after_turn = self._observe
        process.on_death = self._die
        self.stalls = Stalls(process.stalls, process.mistimed)
        history.stalls[process.name] = self.stalls
        self.redlock = self._make()

    def _make(self) -> Redlock:
        options = self._options
        nodes = []
        for host in self._network.hosts.values():
            node = RedisNode(f"redis://{host.server.name}", PROBE_KEY)
            node._dialer = SimDialer(self._network, self.process, host)  # type: ignore[assignment]
            node.name = node._dialer.name
            nodes.append(node)
        redlock = Redlock(
            nodes,
            ttl=options.ttl,
            drift_factor=options.drift_factor,
            node_timeout=options.node_timeout,
            restart_guard=options.guarded,
            retry=RetryPolicy(*options.retry),
        )
        seed = f"{options.seed} {self.process.name}"
        redlock._runtime = SimRuntime(self.process, seed, self._token_made)
        return redlock

    def start(self) -> None:
        """Let the users come."""
        for _ in range(self._options.tasks):
            self.tasks.append(self.process.start(self._use()))

    def close(self) -> asyncio.Task[None]:
        """Close the client, whatever its users are doing."""
        self.closed = self.stopping = True
        return self.process.start(self._close())

    async def _close(self) -> None:
        for tenure in self._watched:
            tenure.released_at = min(tenure.released_at, self.process.now())
        await self.redlock.aclose()

    # What is seen from outside the library.

    def _token_made(self, token: bytes) -> None:
        task = asyncio.current_task()
        attempt = self._attempts.get(task) if task is not None else None
        if attempt is not None:
            attempt.tokens.append((token, self.process.now()))

    def _observe(self) -> None:
        """After each turn: what leases say of themselves, as a user who looks would see it."""
        if not self._watched:
            return
        for tenure, lease in list(self._watched.items()):
            hold = lease._hold
            if hold.valid_until != tenure.deadlines[-1][1]:
                self._note_deadline(tenure, hold.valid_until)
            if hold.state is LOST:
                tenure.voted_out_at = min(tenure.voted_out_at, self.process.now())
                del self._watched[tenure]
            elif tenure.released_at < self.process.now():
                del self._watched[tenure]

    def _note_deadline(self, tenure: Tenure, valid_until: float) -> None:
        now, until = self.process.now(), self.process.boottime.when(valid_until)
        tenure.deadlines.append((now, valid_until))
        tenure.true_deadlines.append((now, until))
        tenure.until = until

    def _die(self) -> None:
        self.stalls.died_at = self.process.died_at
        for wire in self._network.wires_of(self.process):
            wire._hang_up()

    # What the users do.

    async def _use(self) -> None:
        while not self.stopping:
            call = asyncio.create_task(self._one_call())
            self._calls.add(call)
            if self._rng.random() < self._options.cancelled:
                self._cancel_some_time(call)
            await asyncio.wait({call})
            self._calls.discard(call)
            if not call.cancelled() and (error := call.exception()) is not None:
                what = f"RAISED {self.process.name}: {error!r} left a call"
                self._history.odd(self.process.now(), what)
            await asyncio.sleep(self._rng.random() * self._options.think)

    def _cancel_some_time(self, call: asyncio.Task[None]) -> None:
        if self._rng.random() < 0.6:
            self.process.cancel_in(self._rng.randrange(TURNS_TO_CANCEL), call)
        else:
            self.process.loop.call_later(self._rng.random() * self._options.ttl, call.cancel)

    async def _one_call(self) -> None:
        rng, options = self._rng, self._options
        number = rng.randrange(options.names)
        ttl = options.ttl * rng.choice((1.0, 1.0, 0.7))
        style = rng.choice(("with", "with", "hand", "try"))
        lock = self.redlock(
            f"name{number}",
            ttl=ttl,
            wait=0 if style == "try" else rng.choice((0.0, 0.3, 2.0, 10.0)),
            renew=rng.random() < 0.7,
            max_hold=rng.choice((None, 3600.0, 3 * ttl)),
            fenced=number < options.names * options.fenced,
            on_lost=rng.choice(("cancel", "cancel", "notify")),
        )
        attempt = self._attempt(f"name{number}", ttl, fenced=lock._fenced)
        try:
            if style == "with":
                await self._with(lock, attempt)
            else:
                await self._by_hand(lock, attempt, style)
        except (AcquireError, LeaseError) as error:
            self._ended(attempt, type(error).__name__)
        except ConfigurationError:
            if not self.closed:
                raise
            self._ended(attempt, "closed")
        except asyncio.CancelledError:
            self._ended(attempt, "cancelled")
            raise
        finally:
            self._ended(attempt, "over")

    async def take_once(self, name: str, wait: float) -> None:
        """Take a name in the healed system: it must be granted."""
        attempt = self._attempt(name, self._options.ttl, fenced=True)
        attempt.must = True
        try:
            lease = await self.redlock(name, wait=wait, fenced=True).acquire()
        except AcquireError as error:
            self._ended(attempt, f"{type(error).__name__}: {error}")
            return
        tenure = self._granted(attempt, lease, listens=False)
        self._released(tenure)
        await lease.release()

    async def keep(self, name: str) -> None:
        """Hold a name until it is lost."""
        attempt = self._attempt(name, self._options.ttl, fenced=False)
        lease = await self.redlock(name).acquire()
        tenure = self._granted(attempt, lease, listens=True)
        await self._listen(tenure, lease)
        self._released(tenure)
        await lease.release()

    def _attempt(self, name: str, ttl: float, *, fenced: bool) -> Attempt:
        task = asyncio.current_task()
        assert task is not None
        attempt = Attempt(self.process.name, name, ttl, fenced, self.process.now())
        self._history.attempts.append(attempt)
        self._attempts[task] = attempt
        task.add_done_callback(self._attempts.pop)
        return attempt

    def _ended(self, attempt: Attempt, outcome: str) -> None:
        if not attempt.outcome:
            attempt.outcome, attempt.ended_at = outcome, self.process.now()

    def _granted(self, attempt: Attempt, lease: Lease, *, listens: bool) -> Tenure:
        self._ended(attempt, "granted")
        tenure = Tenure(
            attempt,
            lease._hold.token,
            self.process.now(),
            fence=lease.fence if attempt.fenced else None,
            listens=listens,
        )
        self._note_deadline(tenure, lease.valid_until)
        attempt.tenure = tenure
        self._history.tenures.append(tenure)
        self._watched[tenure] = lease
        return tenure

    def _released(self, tenure: Tenure) -> None:
        tenure.released_at = min(tenure.released_at, self.process.now())

    async def _with(self, lock: Lock, attempt: Attempt) -> None:
        tenure = None
        try:
            async with lock as lease:
                tenure = self._granted(attempt, lease, listens=lock._on_lost == "cancel")
                try:
                    await self._hold(tenure, lease)
                except asyncio.CancelledError:
                    if lease.is_lost:
                        tenure.told_at = min(tenure.told_at, self.process.now())
                    raise
                finally:
                    self._released(tenure)
        except LeaseLost:
            if tenure is not None:
                tenure.told_at = min(tenure.told_at, self.process.now())

    async def _by_hand(self, lock: Lock, attempt: Attempt, style: str) -> None:
        lease = await (lock.try_acquire() if style == "try" else lock.acquire())
        if lease is None:
            self._ended(attempt, "none")
            return
        tenure = self._granted(attempt, lease, listens=True)
        if self._rng.random() < DROPPED:
            tenure.dropped, tenure.listens = True, False
            self._released(tenure)
            return
        ear = asyncio.create_task(self._listen(tenure, lease))
        try:
            await self._hold(tenure, lease)
        finally:
            self._released(tenure)
            try:
                await lease.release()
            finally:
                ear.cancel()

    async def _listen(self, tenure: Tenure, lease: Lease) -> None:
        if await lease.lost():
            tenure.told_at = min(tenure.told_at, self.process.now())

    async def _hold(self, tenure: Tenure, lease: Lease) -> None:
        """Do some work, and perhaps extend by hand."""
        rng = self._rng
        seconds = rng.random() ** 2 * self._options.held * tenure.attempt.ttl
        if rng.random() < EXTENDED:
            await asyncio.sleep(seconds / 2)
            ttl = rng.choice((None, None, self._options.ttl * rng.choice((0.5, 1.0))))
            try:
                await lease.extend(ttl)
            except LeaseError:
                return
            seconds /= 2
        await asyncio.sleep(seconds)
