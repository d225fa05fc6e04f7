"""One seed: servers, clients and faults for a while, then all is healed and must work again.

Phases, in true time: faults (three quarters), then `heal`: servers are up, paths free, processes run on.
After a guard period and a ttl, when nothing old can be alive any more, every client takes every name; at
last keys are taken away behind a holder's back, and it has to be told. Then everything is closed, and
nothing may be left.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import logging
import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

from tests.simulation.checks import GRANT_S_MAX, Verdict, judge
from tests.simulation.faults import Faults
from tests.simulation.history import History
from tests.simulation.network import Network, Path
from tests.simulation.options import Options
from tests.simulation.process import Process
from tests.simulation.server import Server
from tests.simulation.workload import Client
from tests.simulation.world import Clock, World

__all__ = ["Result", "Simulation", "simulate"]

FAULTY = 0.7
REDIAL_S = 5.0
"""By then every client is connected to every server again: dials that hang end after 2 s."""
CLOSING_S = 3.0
LONGEST_CALL_S = 20.0


@dataclass(frozen=True, slots=True)
class Result:
    """What came out of one seed."""

    options: Options
    history: History
    verdict: Verdict
    digest: str
    """Equal for equal runs."""


def simulate(options: Options) -> Result:
    """Run one seed and judge it."""
    with _quiet():
        simulation = Simulation(options)
        simulation.run()
        verdict = judge(simulation.history, options)
        result = Result(options, simulation.history, verdict, _digest(simulation.history))
        simulation.bury()
        del simulation
    return result


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """No garbage collection at random times, and no warnings: leases are dropped on purpose.

    What is there already is set apart, so that the collection at the end is a quick one.
    """
    logger = logging.getLogger("aioredlock2")
    was_disabled, logger.disabled = logger.disabled, True
    gc.freeze()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
            gc.collect()
    finally:
        gc.enable()
        logger.disabled = was_disabled


def _digest(history: History) -> str:
    lines = [f"{t.granted_at:.9f} {t.token!r} {t.until:.9f} {t.fence}" for t in history.tenures]
    lines += [f"{c.at:.9f} {c.process} {c.server} {c.verb} {c.token!r}" for c in history.commands]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


class Simulation:
    """Everything of one seed."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.world = World()
        self.history = History()
        rng = random.Random(f"{options.seed} simulation")
        self.network = Network(self.world, self.history, random.Random(f"{options.seed} network"))
        self.network.chunked, self.network.lost = options.chunked, options.lost
        self.network.late, self.network.late_s = options.late, options.late_s
        self.hosts = [
            self.network.host(
                Server(
                    self.world,
                    self.history,
                    f"n{number}",
                    kind=kind,
                    clock=Clock(rng.uniform(1000, 1001), rate),
                    seed=options.seed,
                ),
            )
            for number, (kind, rate) in enumerate(
                zip(options.kinds, options.node_rates, strict=True), start=1
            )
        ]
        for host in self.hosts:
            # It has been up for long: nobody is in its guard at the start.
            host.server.clock.step(1000.0)
        self.clients: list[Client] = []
        self.gone: list[Client] = []
        for number in range(options.processes):
            self._start_client(number, 1)

    def _start_client(self, number: int, life: int) -> Client:
        options = self.options
        process = Process(
            self.world,
            f"p{number + 1}" if life == 1 else f"p{number + 1}.{life}",
            rate=options.client_rates[number],
            wall_skew=options.wall_skews[number],
            turn_s=options.turn_s,
            timers_first=options.timers_first,
        )
        for host in self.hosts:
            self.network.paths[process.name, host.server.name] = Path(options.delay, options.jitter)
        client = Client(process, self.network, self.history, options)
        if number < len(self.clients):
            self.gone.append(self.clients[number])
            self.clients[number] = client
        else:
            self.clients.append(client)
        client.start()
        return client

    def replace(self, client: Client) -> None:
        """Start a new process in the place of one that died or closed its client."""
        if client in self.clients and (client.closed or client.process.died_at is not None):
            name, _, life = client.process.name.partition(".")
            self._start_client(int(name[1:]) - 1, int(life or "1") + 1)

    # The phases.

    def run(self) -> None:
        """All of them."""
        options, world = self.options, self.world
        faults = Faults(self)
        world.run(options.seconds * FAULTY)
        faults.heal()
        self.history.healed_at = world.now
        for client in list(self.clients):
            self.replace(client)
        for client in self.clients:
            client.process.calm()
            client.stopping = True
        world.run(world.now + (options.ttl + 2.0 if options.guarded else 0.0) + REDIAL_S)
        self._expect_users_to_end()
        self._expect_grants()
        self._expect_losses()
        self._expect_the_end()

    def _expect_users_to_end(self) -> None:
        """Whoever waits or holds comes to an end; the longest wait is 10 s."""
        give_up_at = self.world.now + LONGEST_CALL_S
        while any(not task.done() for client in self.clients for task in client.tasks):
            if self.world.now > give_up_at:
                self.history.odd(self.world.now, "ENDLESS a user's call never ends")
                return
            self.world.run(self.world.now + 0.5)

    def _expect_grants(self) -> None:
        """Every client takes every name; how long that takes is noted for the checkers."""
        for client in self.clients:
            for number in range(self.options.names):
                client.process.start(client.take_once(f"name{number}", GRANT_S_MAX))
        self.world.run(self.world.now + GRANT_S_MAX + 1.0)

    def _expect_losses(self) -> None:
        """The keys of a held lease vanish from a blocking set: its holder must be told."""
        client = self.clients[0]
        task = client.process.start(client.keep("vanishing"))
        self.world.run(self.world.now + 0.2)
        blocking = len(self.hosts) - len(self.hosts) // 2
        for host in self.hosts[:blocking]:
            host.server.forget()
        self.history.vanished_at = self.world.now
        # Not by the clock: the next renewal, after a third of the ttl, brings the refusals.
        self.world.run(self.world.now + 0.45 * self.options.ttl)
        if not task.done():
            self.history.odd(self.world.now, "UNTOLD a holder is never told that its keys are gone")

    def _expect_the_end(self) -> None:
        """Everything is closed: no task, no exception and no key may be left."""
        tasks = [client.close() for client in self.clients if not client.closed]
        self.world.run(self.world.now + CLOSING_S)
        now = self.world.now
        for client in [*self.clients, *self.gone]:
            if client.process.died_at is not None:
                continue
            for task in asyncio.all_tasks(client.process.loop):
                self.history.odd(
                    now, f"KEPT {client.process.name} has a task left: {task.get_name()}"
                )
            for what in client.process.loop.heard:
                self.history.odd(now, f"HEARD {client.process.name}: {what}")
        for task in tasks:
            if task.done() and not task.cancelled() and task.exception() is not None:
                self.history.odd(now, f"RAISED aclose: {task.exception()!r}")
        self.world.run(self.world.now + 2 * self.options.ttl)
        for host in self.hosts:
            host.server.lock_keys()

    def bury(self) -> None:
        """End the tasks of dead processes, wherever they were: nobody hears what they say."""
        for client in [*self.clients, *self.gone]:
            for task in asyncio.all_tasks(client.process.loop):
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
            client.process.loop.close()
