"""What a lease says of itself, and what others can see (field cases F115, F116, F123, F124)."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence

import pytest

from aioredlock2 import (
    AcquireError,
    Lease,
    LeaseLost,
    LeaseReleased,
    NodeState,
    QuorumUnreachable,
    Redlock,
    ReleaseReport,
)
from aioredlock2._hold import Hold
from aioredlock2._runtime import Runtime
from aioredlock2.embedded import Server
from tests.support.clients import patient, until_up, urls_of
from tests.support.connected import connected
from tests.support.facts import heard
from tests.support.fleet import Look, quorum_ttl, wipe
from tests.support.polling import until
from tests.support.relay import Relays


@pytest.mark.loop
async def test_f115_validity_is_never_longer_than_what_a_quorum_has(
    servers3: Sequence[Server], relays3: Relays, view: Look
) -> None:
    """Sampled all along, while renewals work and after they fail; lost at the end, and for good."""
    async with connected(relays3.urls, node_timeout=0.1) as redlock:
        lease = await redlock("job", ttl=0.9).acquire()
        began = time.monotonic()
        cut_off, samples, first_deadline = False, 0, lease.valid_until
        while lease.is_held:
            stored = quorum_ttl(view, servers3, "job")
            left = lease.remaining()
            assert left <= max(stored, 0.0)  # read later, so it can only be less
            assert not lease.is_released
            samples += 1
            if not cut_off and time.monotonic() - began > 1:
                assert lease.valid_until > first_deadline
                cut_off = True
                for relay in relays3:
                    relay.hold()
            await asyncio.sleep(0.001)
        assert cut_off
        assert samples > 50
        deadline = lease.valid_until
        for relay in relays3:
            relay.release()
        await until(lambda: quorum_ttl(view, servers3, "job") < 0)
        for _ in range(50):
            assert (0.0, False, True) == (lease.remaining(), lease.is_held, lease.is_lost)
            await asyncio.sleep(0.001)
        assert deadline == lease.valid_until
        assert await lease.lost()
        await lease.release()
        assert lease.is_lost


@pytest.mark.loop
async def test_f115_a_stall_between_the_look_and_the_round_is_a_loss(
    servers3: Sequence[Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process stands still right after the lease was found valid and due: still it is told."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        watchdog = redlock.session().watchdog
        renew = watchdog._renew

        def stalled(hold: Hold) -> None:
            time.sleep(hold.terms.ttl)
            renew(hold)

        monkeypatch.setattr(watchdog, "_renew", stalled)
        lease = await redlock("job", ttl=0.5).acquire()
        async with asyncio.timeout(5):
            assert await lease.lost()
        monkeypatch.undo()
        with pytest.raises(LeaseLost):
            await lease.extend()
        await lease.release()


# --- is it held by anyone? ----------------------------------------------------------------------


async def test_f116_held_by_anyone_is_asked_of_a_quorum(servers3: Sequence[Server]) -> None:
    """True for the holder and for others, with a dead node too; unknown without a quorum."""
    async with connected(urls_of(servers3)) as holder, connected(urls_of(servers3)) as other:
        lease = await holder("job", ttl=30).acquire()
        await heard(lease)
        for client in (holder, other):
            assert await client.is_locked("job")
            assert lease.digest == (await client.inspect("job")).holder
            assert not await client.is_locked("free")
        for dead, up in ((0, 2), (1, 1)):
            servers3[dead].kill()
            for client in (holder, other):
                await until_up(client, up)
                if up == 2:
                    assert await client.is_locked("job")
                    assert not await client.is_locked("free")
                    continue
                for name in ("job", "free"):
                    with pytest.raises(QuorumUnreachable, match="can't tell"):
                        await client.is_locked(name)
                told = await client.inspect("job")
                assert (None, None) == (told.holder, told.remaining)
                assert ["", lease.digest] == [told.nodes[2].cause, told.nodes[2].holder]
                assert all(node.cause for node in told.nodes[:2])
        assert lease.is_held
        await lease.release()


async def test_f116_two_of_three_and_one_of_them_dead_is_unknown(
    servers3: Sequence[Server], view: Look
) -> None:
    """What the dead node has may be the vote that counts: neither yes nor no."""
    async with connected(urls_of(servers3)) as redlock, redlock("job", ttl=30) as lease:
        await heard(lease)
        wipe(view, servers3[:1], "job")
        assert await redlock.is_locked("job")
        servers3[1].kill()
        await until_up(redlock, 2)
        with pytest.raises(QuorumUnreachable, match="can't tell"):
            await redlock.is_locked("job")
        assert lease.is_held


async def test_f116_after_the_end_nobody_holds_it(servers3: Sequence[Server]) -> None:
    """Just expired or just released: no longer locked; a lease only knows of itself."""
    async with connected(urls_of(servers3), node_timeout=0.1) as redlock:
        expiring = await redlock("job", ttl=0.5, renew=False).acquire()
        await heard(expiring)
        seen = await redlock.inspect("job")
        assert seen.remaining is not None
        assert 0 < seen.remaining <= 0.5
        await until(lambda: expiring.is_lost)
        await asyncio.sleep(0.03)  # the drift allowance is over, the keys have expired
        assert not await redlock.is_locked("job")
        async with redlock("job") as lease:
            assert await redlock.is_locked("job")
            assert not expiring.is_held
        await heard_gone(redlock)
        assert not lease.is_held


async def heard_gone(redlock: Redlock) -> None:
    async with asyncio.timeout(5):
        while await redlock.is_locked("job"):
            await asyncio.sleep(0.001)


# --- work that takes longer than the ttl --------------------------------------------------------


async def test_f123_a_body_longer_than_the_ttl_is_renewed(servers3: Sequence[Server]) -> None:
    """Three ttls of work, a rival waiting all the while: it comes in after the end, not before."""
    async with (
        connected(urls_of(servers3), node_timeout=0.1) as one,
        connected(urls_of(servers3)) as two,
    ):
        async with one("job", ttl=0.7) as lease:
            rival = asyncio.create_task(two("job", wait=20).acquire())
            await asyncio.sleep(2.1)
            assert lease.is_held
            assert not rival.done()
        await (await rival).release()


async def test_f123_without_renewal_the_body_is_told_at_the_end_of_validity(
    servers3: Sequence[Server],
) -> None:
    """Not first at the exit: it is cancelled then and there, and the rival comes in afterwards."""
    times: dict[str, float] = {}
    clock = Runtime().clock
    async with (
        connected(urls_of(servers3), node_timeout=0.1) as one,
        connected(urls_of(servers3)) as two,
    ):

        async def rival() -> None:
            async with two("job", wait=20):
                times["entered"] = clock()

        async def overrun() -> None:
            async with one("job", ttl=0.7, renew=False) as lease:
                times["valid until"] = lease.valid_until
                waiting.append(asyncio.create_task(rival()))
                try:
                    await asyncio.sleep(20)
                finally:
                    times["told"] = clock()

        waiting: list[asyncio.Task[None]] = []
        with pytest.raises(LeaseLost, match="validity ended"):
            await overrun()
        await waiting[0]
    assert times["valid until"] <= times["told"] < times["valid until"] + 2
    assert times["valid until"] <= times["entered"]


# --- a total state machine ----------------------------------------------------------------------


class Model:
    """One lease under random calls: after each, its state is one of three and never turns back."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self.state = "held"
        self.report: ReleaseReport | None = None

    def check(self) -> None:
        lease = self.lease
        flags = {"held": lease.is_held, "lost": lease.is_lost, "released": lease.is_released}
        # Time goes on between the reads: a lease may turn from held to lost there, only there.
        now = [name for name, flag in flags.items() if flag]
        if now in ([], ["held", "lost"]):
            now = ["lost"]
        assert 1 == len(now), flags
        assert self.state in ("held", now[0]), f"{self.state} turned {now[0]}"
        self.state = now[0]
        text = repr(lease)
        assert self.state in text or (self.state == "held" and "lost" in text)
        assert self.state == "held" or 0.0 == lease.remaining()

    async def extend(self) -> None:
        try:
            await self.lease.extend()
        except LeaseReleased:
            assert self.state == "released"
        except LeaseLost:
            assert self.state != "released"
            assert self.lease.is_lost
        else:
            assert self.state == "held"

    async def release(self) -> None:
        report = await self.lease.release()
        if self.report is not None:
            assert [n.node for n in self.report.nodes] == [n.node for n in report.nodes]
        self.report = report
        assert self.lease.is_released or self.lease.is_lost

    async def lost(self) -> None:
        if self.state != "held":
            assert (self.state == "lost") is await self.lease.lost()


@pytest.mark.loop
async def test_f124_h41_every_call_in_every_state_has_its_result(
    servers3: Sequence[Server], relays3: Relays, view: Look, rng: random.Random
) -> None:
    """Hundreds of random calls among random faults: held, then lost or released, and nothing else."""
    wanted = {(s, c) for s in ("lost", "released") for c in ("extend", "release", "lost", None)}
    wanted.add(("held", "extend"))
    seen: set[tuple[str, str | None]] = set()
    steps = 0
    async with connected(relays3.urls, node_timeout=0.05, ttl=0.4) as redlock:
        model: Model | None = None
        while steps < 300 or not wanted <= seen:
            steps += 1
            if model is None or (model.state != "held" and rng.random() < 0.2):
                try:
                    model = Model(await redlock("job", wait=1).acquire())
                except AcquireError:
                    continue
            await disturb(rng, relays3, servers3, view)
            call = rng.choice([model.extend, model.extend, model.release, model.lost, None, None])
            if call is not None:
                await call()
            model.check()
            seen.add((model.state, None if call is None else call.__name__))
            await asyncio.sleep(rng.choice([0, 0, 0, 0.005]))
        if model is not None:
            await model.release()


async def disturb(
    rng: random.Random, relays: Relays, servers: Sequence[Server], view: Look
) -> None:
    """Perhaps one fault: keys gone, a connection cut, everything silent for a while."""
    fault = rng.random()
    if fault < 0.04:
        wipe(view, servers[:2], "job")
    elif fault < 0.06:
        rng.choice(relays).cut()
    elif fault < 0.07:
        for relay in relays:
            relay.hold()
        await asyncio.sleep(rng.choice([0.1, 0.5]))
        for relay in relays:
            relay.release()


async def test_f124_closing_the_client_ends_every_lease(servers3: Sequence[Server]) -> None:
    """Held ones are released, lost ones stay lost; each goes on to answer every call."""
    redlock = patient(urls_of(servers3), node_timeout=0.1)
    async with redlock:
        held = await redlock("held").acquire()
        lost = await redlock("lost", ttl=0.4, renew=False).acquire()
        await until(lambda: lost.is_lost)
    assert (True, False) == (held.is_released, held.is_lost)
    assert (False, True) == (lost.is_released, lost.is_lost)
    with pytest.raises(LeaseReleased):
        await held.extend()
    with pytest.raises(LeaseLost):
        await lost.extend()
    assert (await held.release()).nodes
    assert [False, True] == [await held.lost(), await lost.lost()]
    assert NodeState.UP not in {node.state for node in redlock.nodes}
