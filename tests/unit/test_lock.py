"""The request: ways to acquire, and what leaving `async with` does in every way it can be left."""

from __future__ import annotations

import asyncio
import os
import pickle
from collections.abc import AsyncGenerator

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aioredlock2 import (
    ConfigurationError,
    Lease,
    Lock,
    LockContended,
    QuorumUnreachable,
    Redlock,
)
from aioredlock2._node import Verb
from tests.support.bodies import BodyError, under
from tests.support.model_node import ModelNode, client, sent
from tests.support.scene import (
    KEY,
    NODE_TIMEOUT,
    ROUND_TRIP,
    SLACK,
    cut,
    free,
    hold_elsewhere,
    holders,
    nearby,
    now,
    rounds_at,
)
from tests.support.virtual import VirtualLoop, in_virtual_time, run, settle, the_loop

# --- entering and leaving -----------------------------------------------------------------------


@in_virtual_time
async def test_f016_the_body_runs_under_a_lease_or_not_at_all() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        async with redlock("x") as lease:
            assert lease.is_held
            assert len(set(holders(nodes)) - {None}) == 1
        assert lease.is_released
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5
        hold_elsewhere(nodes)
        with pytest.raises(LockContended):
            async with redlock("x", wait=0.5):
                pytest.fail("the body ran without the lock")


async def leave_by(how: str, lock: Lock) -> None:
    for _ in range(1):
        async with lock:
            if how == "return":
                return
            if how == "break":
                break
            if how == "continue":
                continue
            raise BodyError


@pytest.mark.parametrize("how", ["return", "break", "continue", "raise"])
@in_virtual_time
async def test_f075_every_way_out_frees(how: str) -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        if how == "raise":
            with pytest.raises(BodyError):
                await leave_by(how, redlock("x"))
        else:
            await leave_by(how, redlock("x"))
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_f075_a_generator_that_is_closed_frees() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:

        async def generate() -> AsyncGenerator[int]:
            async with redlock("x"):
                yield 1

        generator = generate()
        assert await anext(generator) == 1
        await generator.aclose()
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 5


@in_virtual_time
async def test_f071_releasing_inside_is_fine_and_the_exit_quiet() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        async with redlock("x") as lease:
            await lease.release()
            assert lease.is_released
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5


@in_virtual_time
async def test_f071_leaving_what_was_not_entered_is_an_error_and_sends_nothing() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        with pytest.raises(ConfigurationError, match="left without having been entered"):
            await redlock("x").__aexit__(None, None, None)
        assert not nodes[0].asked


@in_virtual_time
async def test_f048_the_lease_lives_though_nobody_has_a_name_for_it() -> None:
    nodes = nearby()
    async with client(nodes) as redlock, redlock("x"):
        await asyncio.sleep(100)
        assert len(set(holders(nodes))) == 1
        assert None not in holders(nodes)


@in_virtual_time
async def test_f068_the_exit_takes_one_node_timeout_at_most_and_hides_nothing() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        began_at = 0.0

        async def body(_: Lease) -> None:
            nonlocal began_at
            await settle()
            for node in nodes:
                node.server.freeze()
            began_at = now()
            raise BodyError

        with pytest.raises(BodyError):
            await under(redlock("x"), body)
        assert now() - began_at <= NODE_TIMEOUT + SLACK


# --- sharing ------------------------------------------------------------------------------------


@in_virtual_time
async def test_f082_one_lock_shared_by_tasks_is_a_lease_and_a_token_each() -> None:
    nodes, inside = nearby(3), list[Lease]()
    async with client(nodes) as redlock:
        lock = redlock("x")

        async def use() -> None:
            async with lock as lease:
                inside.append(lease)
                assert [each for each in inside if each.is_held] == [lease]
                await asyncio.sleep(0.01)

        await asyncio.gather(*(use() for _ in range(10)))
        assert len({lease.digest for lease in inside}) == 10


@in_virtual_time
async def test_f082_one_lock_may_be_used_again_and_again() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:
        lock = redlock("x")
        for _ in range(100):
            async with lock as lease:
                assert lease.is_held
        assert len({asked.token for asked in nodes[0].asked}) == 100


@in_virtual_time
async def test_f080_the_exit_may_happen_in_another_task() -> None:
    """With the entering task done, or still at work."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x")
        lease = await asyncio.create_task(lock.__aenter__())
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert lease.is_released
        lease = await lock.__aenter__()
        await asyncio.create_task(lock.__aexit__(None, None, None))
        assert lease.is_released


@in_virtual_time
async def test_f080_an_exit_takes_its_own_entry_else_the_oldest_of_a_task_that_is_done() -> None:
    """A lock whose names overlap: entered by a task that ended, and by this one."""
    nodes = nearby()
    async with client(nodes) as redlock:
        lock = redlock("x", renew=False)
        orphan = await asyncio.create_task(lock.__aenter__())
        orphan._hold.turn.holder = None
        redlock.session().turns.leave(orphan._hold.turn)
        free(nodes)
        async with lock as mine:
            assert orphan.is_held
        assert mine.is_released
        assert orphan.is_held
        await lock.__aexit__(None, None, None)
        assert orphan.is_released


@in_virtual_time
async def test_a_lock_is_entered_by_a_task_only() -> None:
    """There must be somebody to cancel at a loss."""
    nodes = nearby()
    async with client(nodes) as redlock:
        errors: list[BaseException] = []

        def callback() -> None:
            entering = redlock("x").__aenter__()
            try:
                entering.send(None)
            except ConfigurationError as error:
                errors.append(error)

        the_loop().call_soon(callback)
        await settle()
        assert "needs a running asyncio task" in str(errors[0])
        assert not nodes[0].asked


def test_in_a_forked_child_the_exit_touches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no loop running, and the lease is the parent's."""

    async def enter() -> tuple[Redlock, Lock, list[ModelNode]]:
        nodes = nearby()
        redlock = client(nodes)
        lock = redlock("x")
        await lock.__aenter__()
        return redlock, lock, nodes

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        redlock, lock, nodes = runner.run(enter())
        parent = os.getpid()
        with monkeypatch.context() as child:
            child.setattr(os, "getpid", lambda: parent + 1)
            with pytest.raises(StopIteration):
                lock.__aexit__(None, None, None).send(None)
        assert not any(sent(nodes, Verb.REVOKE))
        runner.run(redlock.aclose())


# --- cancelled exits ----------------------------------------------------------------------------


@given(turns=st.integers(0, 30), steps=st.sampled_from([0.0, 0.0002, 0.0007]))
def test_f066_cancelled_at_any_moment_it_leaves_no_key(turns: int, steps: float) -> None:
    """In the acquire, in the body, in the exit: the deletes are out before the cancellation."""

    async def main() -> None:
        nodes = nearby()
        async with client(nodes) as redlock:
            progress: list[str] = []

            async def use() -> None:
                async with redlock("x"):
                    progress.append("entered")
                    await asyncio.sleep(0.001)
                progress.append("left")

            task = asyncio.create_task(use())
            for _ in range(turns):
                await asyncio.sleep(steps)
            cancelled = task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() == cancelled
            assert ("left" in progress) == (not cancelled)
            await asyncio.sleep(2 * ROUND_TRIP)
            assert holders(nodes) == [None] * 5

    run(main())


@in_virtual_time
async def test_f066_an_exit_that_is_cancelled_ends_at_once() -> None:
    """Frozen nodes: only the wait is given up."""
    nodes = nearby()
    async with client(nodes) as redlock:
        task = asyncio.create_task(under(redlock("x"), lambda _: asyncio.sleep(1)))
        await asyncio.sleep(0.5)
        for node in nodes:
            node.server.freeze()
        await asyncio.sleep(0.5 + ROUND_TRIP + 0.01)
        assert not task.done()
        began_at = now()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
        assert now() - began_at < SLACK
        assert [len(revokes) for revokes in sent(nodes, Verb.REVOKE)] == [1] * 5


@in_virtual_time
async def test_in_a_cancelled_anyio_scope_the_exit_still_waits_for_the_answers() -> None:
    """Level cancellation strikes at every await: the wait is shielded."""
    nodes = nearby()
    async with client(nodes) as redlock:
        with anyio.CancelScope() as scope:
            async with redlock("x") as lease:
                scope.cancel()
                await asyncio.sleep(1)
        assert scope.cancelled_caught
        assert lease.is_released
        assert holders(nodes).count(None) >= 3


@in_virtual_time
async def test_in_a_cancelled_anyio_scope_an_acquire_leaves_no_key() -> None:
    nodes = nearby()
    async with client(nodes) as redlock:
        with anyio.move_on_after(ROUND_TRIP / 2) as scope:
            async with redlock("x"):
                pytest.fail("acquired in half a round trip")
        assert scope.cancelled_caught
        await asyncio.sleep(2 * ROUND_TRIP)
        assert holders(nodes) == [None] * 5


# --- by hand, as a decorator --------------------------------------------------------------------


@in_virtual_time
async def test_try_acquire_tries_once_whatever_the_locks_own_wait() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:
        began_at = now()
        assert await redlock("x", wait=None).try_acquire() is None
        assert now() - began_at == pytest.approx(ROUND_TRIP)
        cut(nodes)
        with pytest.raises(QuorumUnreachable):
            await redlock("x", wait=None).try_acquire()


@in_virtual_time
async def test_a_decorated_function_runs_under_a_lease_per_call() -> None:
    nodes = nearby(3)
    async with client(nodes) as redlock:

        @redlock("x")
        async def add(one: int, *, other: int) -> int:
            """Adds."""
            assert None not in holders(nodes[:2])
            await asyncio.sleep(0.01)
            return one + other

        assert (add.__name__, add.__doc__) == ("add", "Adds.")
        assert list(await asyncio.gather(add(1, other=2), add(3, other=4))) == [3, 7]
        assert len(rounds_at(nodes)) == 2
        await asyncio.sleep(ROUND_TRIP)
        assert holders(nodes) == [None] * 3


@in_virtual_time
async def test_a_decorated_function_that_is_contended_does_not_run() -> None:
    nodes = nearby(3)
    hold_elsewhere(nodes)
    async with client(nodes) as redlock:

        @redlock("x", wait=0)
        async def never() -> None:
            pytest.fail("ran without the lock")

        with pytest.raises(LockContended):
            await never()


@in_virtual_time
async def test_only_async_functions_can_be_decorated() -> None:
    async with client(nearby(1)) as redlock:
        with pytest.raises(TypeError, match="decorates async functions only"):
            redlock("x")(lambda: None)  # type: ignore[arg-type, return-value]


@in_virtual_time
async def test_f090_a_lock_shows_what_it_asks_for_and_cannot_be_pickled() -> None:
    async with client(nearby(1)) as redlock:
        lock = redlock("x", ttl=2.5)
        assert lock.resource == "x"
        assert repr(lock) == "<Lock 'x' ttl=2.5 s>"
        with pytest.raises(TypeError, match="a Lock can't be pickled"):
            pickle.dumps(lock)


@in_virtual_time
async def test_f110_the_key_is_the_prefix_and_the_name() -> None:
    nodes, bare_nodes = nearby(1), nearby(1)
    async with client(nodes) as redlock, client(bare_nodes, prefix="") as bare:
        async with redlock("x"), bare(b"\xff"):
            assert nodes[0].asked[0].key == KEY
        assert bare_nodes[0].asked[0].key == b"\xff"
