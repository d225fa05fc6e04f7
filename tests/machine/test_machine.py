"""F124: whatever is called in whatever order, while nodes and clocks misbehave, a lease is in one state.

A few hundred steps here; `nox -s machine` takes ten thousand in each world (`AIOREDLOCK2_STEPS`).
"""

from __future__ import annotations

import os
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import invariant, run_state_machine_as_test

from aioredlock2._node import Verb
from tests.machine.operations import Operations
from tests.machine.worlds import MemoryWorld, ServerWorld
from tests.support.pool import ServerPool
from tests.support.scene import SLACK
from tests.support.servers import Kind

STEPS = int(os.environ.get("AIOREDLOCK2_STEPS", "0"))
STEPS_IN_MEMORY = STEPS or 2000
STEPS_ON_SERVERS = STEPS or 150
STEPS_PER_RUN = 50


def explore(machine: Callable[[], Operations], number: int) -> None:
    """Run the machine for so many steps."""
    run_state_machine_as_test(machine, settings=steps(number))  # type: ignore[arg-type]


def steps(number: int) -> settings:
    return settings(
        max_examples=max(1, number // STEPS_PER_RUN),
        stateful_step_count=STEPS_PER_RUN,
        deadline=None,  # on a loaded machine an example may take any time
        print_blob=True,
        phases=set(Phase) - {Phase.explain},  # it takes longer than all the rest
        suppress_health_check=list(HealthCheck),
    )


class InMemory(Operations):
    """Here it is also known what the nodes were asked."""

    def __init__(self) -> None:
        self.memory = MemoryWorld()
        super().__init__(self.memory)

    @invariant()
    def the_dead_are_only_deleted(self) -> None:
        """Requests put to a node after the end of a lease, with its token, are deletes."""
        ended = {seen.token: seen.ended_at for seen in self.leases if seen.ended_at is not None}
        for asked in [
            asked for nodes in self.memory.nodes for node in nodes for asked in node.asked
        ]:
            if asked.verb is not Verb.REVOKE and asked.token in ended:
                assert asked.at <= ended[asked.token] + SLACK


def test_f124_in_memory() -> None:
    explore(InMemory, STEPS_IN_MEMORY)


def test_f124_over_a_real_server(pool: ServerPool, any_kind: Kind) -> None:
    (server,) = pool.take(any_kind, 1)
    explore(lambda: Operations(ServerWorld(server)), STEPS_ON_SERVERS)
