"""What goes wrong, at random times: each kind of fault, how it begins and when it is over."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.simulation.host import Host
from tests.simulation.process import Process

if TYPE_CHECKING:
    from tests.simulation.simulation import Simulation

__all__ = ["Faults"]

AILMENTS = (
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script.",
    "LOADING Redis is loading the dataset in memory",
    "MISCONF Redis is configured to save RDB snapshots",
    "READONLY You can't write against a read only replica.",
)


class Faults:
    """Strikes until it is told to heal."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._history = simulation.history
        self._options = simulation.options
        self._rng = random.Random(f"{simulation.options.seed} faults")
        self._over = False
        for kind in self._options.faults:
            self._plan(kind)

    def heal(self) -> None:
        """No more faults; what is broken is repaired now."""
        self._over = True
        for host in self._simulation.hosts:
            host.server.ailment = ""
            host.service_s = 0.0
            if host.frozen:
                host.thaw()
            host.restart()
        self._simulation.network.calm()

    def _plan(self, kind: str) -> None:
        pause = self._rng.expovariate(self._options.faults[kind] / 60)
        self._world.later(pause, self._strike, kind)

    def _strike(self, kind: str) -> None:
        if self._over:
            return
        what = STRIKES[kind](self)
        if what:
            self._history.faults.append((self._world.now, what))
        self._plan(kind)

    def _for_a_while(self, longest: float, undo: Callable[[], None]) -> str:
        """Undo it after a random time; short ones are as likely as long ones."""
        seconds = longest * 10 ** -(self._rng.random() * 2)
        self._world.later(seconds, lambda: None if self._over else undo())
        return f"for {seconds:.3f} s"

    def _host(self) -> Host:
        return self._rng.choice(self._simulation.hosts)

    def _process(self) -> Process:
        return self._rng.choice(self._simulation.clients).process

    # Servers.

    def _freeze(self) -> str:
        host = self._host()
        if host.frozen or not host.up:
            return ""
        host.freeze()
        return f"{host.server.name} is stopped {self._for_a_while(6.0, host.thaw)}"

    def _crash(self) -> str:
        return self._end(self._host(), forgets=False)

    def _amnesia(self) -> str:
        """One of them, or several at once, as when a rack loses power."""
        hosts = self._simulation.hosts
        some = self._rng.sample(hosts, self._rng.choice((1, 1, self._rng.randint(1, len(hosts)))))
        for host in some:
            if not self._options.guarded:
                what = f"{host.server.name} forgets, unguarded"
                self._history.broken.append((self._world.now, what))
        return "; ".join(filter(None, [self._end(host, forgets=True) for host in some]))

    def _end(self, host: Host, *, forgets: bool) -> str:
        if not host.up:
            return ""
        silent = self._rng.random() < 0.3
        host.crash(forgets=forgets, silent=silent)
        longest = 5.0 if self._options.guarded else self._options.ttl / 2
        how = "with its memory" if forgets else "and keeps its memory"
        return f"{host.server.name} crashes {how} {self._for_a_while(longest, host.restart)}"

    def _ail(self) -> str:
        server = self._host().server
        server.ailment = self._rng.choice(AILMENTS)

        def heal() -> None:
            server.ailment = ""

        return f"{server.name} says {server.ailment[:8]}... {self._for_a_while(3.0, heal)}"

    def _slow(self) -> str:
        host = self._host()
        host.service_s = self._rng.random() * 0.1

        def heal() -> None:
            host.service_s = 0.0

        return f"{host.server.name} is slow {self._for_a_while(3.0, heal)}"

    def _flush_scripts(self) -> str:
        server = self._host().server
        server.flush_scripts()
        return f"{server.name} loses its scripts"

    def _flush(self) -> str:
        server = self._host().server
        server.forget()
        self._history.broken.append((self._world.now, f"{server.name} is flushed"))
        return f"{server.name} is flushed"

    def _step(self) -> str:
        server = self._host().server
        seconds = self._rng.uniform(-1, 2) * self._options.ttl
        server.clock.step(seconds)
        self._history.broken.append((self._world.now, f"the clock of {server.name} is stepped"))
        return f"the clock of {server.name} is stepped by {seconds:+.3f} s"

    # The network.

    def _partition(self) -> str:
        process = self._process()
        hosts = [host for host in self._simulation.hosts if self._rng.random() < 0.5]
        direction = self._rng.choice(("both ways", "there", "back"))
        paths = [self._simulation.network.between(process, host) for host in hosts]
        for path in paths:
            path.blocked_there |= direction != "back"
            path.blocked_back |= direction != "there"

        def heal() -> None:
            for path in paths:
                path.heal()

        names = ", ".join(host.server.name for host in hosts)
        while_ = self._for_a_while(6.0, heal)
        return f"nothing passes between {process.name} and {names} ({direction}) {while_}"

    def _reset(self) -> str:
        wires = self._simulation.network.wires_of()
        if not wires:
            return ""
        wire = self._rng.choice(wires)
        wire.reset("connection reset by peer")
        return f"{wire.process.name} loses its connection to {wire.host.server.name}"

    def _lose(self) -> str:
        wires = self._simulation.network.wires_of()
        if not wires:
            return ""
        wire = self._rng.choice(wires)
        wire.lose_from_now(there=self._rng.random() < 0.5)
        return f"nothing passes any more on {wire.process.name}'s way to {wire.host.server.name}"

    def _delay(self) -> str:
        process, host = self._process(), self._host()
        path = self._simulation.network.between(process, host)
        path.extra = 0.3 * 10 ** -(self._rng.random() * 2)

        def heal() -> None:
            path.extra = 0.0

        while_ = self._for_a_while(5.0, heal)
        return f"{process.name} and {host.server.name} are {path.extra:.3f} s apart {while_}"

    # Processes.

    def _seconds(self) -> float:
        return self._options.ttl * 3 * 10 ** -(self._rng.random() * 2)

    def _stall(self) -> str:
        process, seconds = self._process(), self._seconds()
        process.stall(seconds)
        return f"{process.name} is stopped for {seconds:.3f} s"

    def _hiccup(self) -> str:
        process, seconds = self._process(), self._seconds()
        if self._rng.random() < 0.5:
            # About as long as what it has just extended lasts, the old deadline or the new one.
            seconds = self._options.ttl * self._rng.choice((1.0, 0.7)) * self._rng.uniform(0.5, 1.1)
            verb = self._rng.choice(("grant", "renew", "renew", "revoke"))
            process.stall_after(verb, seconds)
            return f"{process.name} is going to be stopped for {seconds:.3f} s after a {verb}"
        process.hiccup(self._rng.randrange(40), seconds, before=self._rng.random() < 0.5)
        return f"{process.name} is going to be held up for {seconds:.3f} s at a clock read"

    def _suspend(self) -> str:
        process, seconds = self._process(), self._seconds()
        process.suspend(seconds)
        return f"{process.name} sleeps for {seconds:.3f} s"

    def _vm_pause(self) -> str:
        process, seconds = self._process(), self._seconds()
        process.freeze_clocks(seconds)
        self._history.broken.append((self._world.now, f"no clock of {process.name} goes on"))
        return f"{process.name} is paused for {seconds:.3f} s, its clocks too"

    def _die(self) -> str:
        client = self._rng.choice(self._simulation.clients)
        if self._rng.random() < 0.5:
            client.process.crash()
        else:
            client.process.crash_after_writes(self._rng.randrange(6))
        self._world.later(self._rng.uniform(0.1, 3.0), self._simulation.replace, client)
        return f"{client.process.name} dies"

    def _close(self) -> str:
        client = self._rng.choice(self._simulation.clients)
        if client.closed or client.process.died_at is not None:
            return ""
        client.close()
        self._world.later(self._rng.uniform(0.1, 3.0), self._simulation.replace, client)
        return f"{client.process.name} closes its client"


STRIKES: dict[str, Callable[[Faults], str]] = {
    "freeze": Faults._freeze,
    "crash": Faults._crash,
    "amnesia": Faults._amnesia,
    "ail": Faults._ail,
    "slow": Faults._slow,
    "flush scripts": Faults._flush_scripts,
    "flush": Faults._flush,
    "step": Faults._step,
    "partition": Faults._partition,
    "reset": Faults._reset,
    "lose": Faults._lose,
    "delay": Faults._delay,
    "stall": Faults._stall,
    "hiccup": Faults._hiccup,
    "suspend": Faults._suspend,
    "vm pause": Faults._vm_pause,
    "die": Faults._die,
    "close": Faults._close,
}
