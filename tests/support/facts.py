"""Facts about a client, a lease or a release that tests wait for."""

from __future__ import annotations

from collections.abc import Iterable

from aioredlock2 import Lease, NodeState, Redlock, ReleaseReport, Removal, Vote
from tests.support.polling import until

__all__ = ["all_up", "deleted", "heard", "states", "works"]


def states(redlock: Redlock) -> list[NodeState]:
    """How each node stands."""
    return [node.state for node in redlock.nodes]


async def all_up(redlock: Redlock, indices: Iterable[int] | None = None) -> None:
    """Wait until all nodes, or those with these indices, vote; connects the client if need be."""
    redlock.session()
    wanted = list(range(len(redlock.nodes)) if indices is None else indices)
    await until(lambda: all(redlock.nodes[i].state is NodeState.UP for i in wanted))


async def heard(lease: Lease, granted: int | None = None) -> None:
    """Wait until all nodes, or as many as *granted*, have said yes to the latest round."""
    await until(
        lambda: (
            [outcome.vote for outcome in lease.votes].count(Vote.GRANTED)
            == (len(lease.votes) if granted is None else granted)
        )
    )


async def deleted(report: ReleaseReport) -> None:
    """Wait until all nodes have said that they had the key and deleted it."""
    await until(lambda: {node.removal for node in report.nodes} == {Removal.DELETED})


async def works(redlock: Redlock) -> None:
    """Acquire, extend and release with the votes of all nodes."""
    await all_up(redlock)
    lease = await redlock("job", wait=0).acquire()
    await heard(lease)
    await lease.extend()
    await heard(lease)
    await deleted(await lease.release())
