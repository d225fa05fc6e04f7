"""How each fault of a node is made and healed: a function per name in `plan.NODE_FAULTS`.

They block until the fault is over; each runs in a thread of its own.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

import hiredis

from aioredlock2.embedded import Server
from tests.faults.arena import ALL_RIGHTS, USER, Arena
from tests.faults.plan import CLOCK_JUMP_S, IN_TURN, SIDES, Fault
from tests.support.ailments import busy
from tests.support.clients import cut_off
from tests.support.relay import Direction, Relay
from tests.support.view import View, Word

__all__ = ["MAKERS", "Scene", "impossible", "make"]

AGAIN_S = 0.1
"""What is done again and again has so long a pause."""
CLOCK_BEHIND_S = 3600.0


@dataclass(frozen=True, slots=True)
class Scene:
    """One node, for one fault."""

    arena: Arena
    index: int
    sides: tuple[int, ...]
    seconds: float
    rng: random.Random
    over: threading.Event
    """Set when the fault is to end early."""

    @property
    def server(self) -> Server:
        """The node's server."""
        return self.arena.servers[self.index]

    @property
    def relays(self) -> list[Relay]:
        """The relays before it, of the sides that are hit."""
        return [self.arena.relay(side, self.index) for side in self.sides]

    def ways(self) -> list[Direction]:
        """One direction or both."""
        up = [relay.to_server for relay in self.relays]
        down = [relay.to_client for relay in self.relays]
        return self.rng.choice([up, down, up + down])

    @property
    def view(self) -> View:
        """Past the relays; not for a fault of one side, which may not be the node's only one."""
        return self.arena.look(self.server)

    def wait(self) -> None:
        """Until the fault is to end."""
        self.over.wait(self.seconds)

    def repeat(self, act: Callable[[], object]) -> None:
        """Do it again and again until the fault is to end."""
        left = self.seconds
        while left > 0 and not self.over.is_set():
            act()
            self.over.wait(AGAIN_S)
            left -= AGAIN_S


Maker = Callable[[Scene], None]


def make(fault: Fault, arena: Arena, over: threading.Event) -> None:
    """Make the fault, wait, and heal it."""
    assert fault.node is not None
    rng = random.Random(fault.seed)
    scene = Scene(arena, fault.node, fault.sides, fault.seconds, rng, over)
    MAKERS[fault.what](scene)


def impossible(arena: Arena) -> list[str]:
    """What can't be done on this machine."""
    return [] if arena.fakes_time else ["clock ahead", "clock behind"]


# The process.


def _frozen(scene: Scene) -> None:
    scene.server.freeze()
    scene.wait()
    scene.server.thaw()


def _killed(scene: Scene, *, empty: bool) -> None:
    scene.server.kill()
    scene.wait()
    scene.arena.restart(scene.server, empty=empty)


def _clock(scene: Scene, ahead: float) -> None:
    scene.arena.set_clock(scene.server, ahead)
    scene.wait()
    scene.arena.set_clock(scene.server, 0.0)


# The network.


def _late(scene: Scene) -> None:
    delay = scene.rng.uniform(0.005, 0.4)
    ways = scene.ways()
    for way in ways:
        way.delay_s = delay
    scene.wait()
    for way in ways:
        way.delay_s = 0.0


def _cut_off_from_all(scene: Scene) -> None:
    """Partitioned; what was sent meanwhile arrives in the end, unless the connections are reset."""
    for relay in scene.relays:
        relay.hold()
    scene.wait()
    is_reset = scene.rng.random() < 0.5
    for relay in scene.relays:
        if is_reset:
            relay.cut()
        relay.release()


def _half_open(scene: Scene) -> None:
    """Requests arrive, replies don't; or the server has closed, and no client hears of it."""
    for relay in scene.relays:
        relay.to_client.hold()
    if len(scene.sides) == SIDES and scene.rng.random() < 0.5:
        scene.view.execute("CLIENT", "KILL", "USER", USER)
    scene.wait()
    for relay in scene.relays:
        relay.to_client.release()


def _black_hole(scene: Scene) -> None:
    """Dials work, and every byte is lost."""
    ways = scene.ways()
    for way in ways:
        way.rewrite = lambda _: b""
    scene.wait()
    for way in ways:
        way.rewrite = None
    for relay in scene.relays:
        relay.cut()


def _dripping(scene: Scene) -> None:
    ways = scene.ways()
    for way in ways:
        way.split = True
    scene.wait()
    for way in ways:
        way.split = False


def _cut_in_mid_reply(scene: Scene) -> None:
    def cut() -> None:
        for relay in scene.relays:
            relay.cut_after(replies=scene.rng.randrange(6), keep_bytes=scene.rng.randrange(4))

    scene.repeat(cut)


def _refusing(scene: Scene) -> None:
    for relay in scene.relays:
        cut_off(relay)
    scene.wait()
    for relay in scene.relays:
        relay.accept()


def _hanging_up(scene: Scene) -> None:
    for relay in scene.relays:
        relay.hang_up()
        relay.cut()
    scene.wait()
    for relay in scene.relays:
        relay.accept()


# What a server is told.


def _clients_killed(scene: Scene) -> None:
    scene.repeat(lambda: scene.view.execute("CLIENT", "KILL", "USER", USER))


def _paused(scene: Scene, *mode: str) -> None:
    scene.view.execute("CLIENT", "PAUSE", int(scene.seconds * 1000), *mode)
    scene.wait()


def _scripts_flushed(scene: Scene) -> None:
    scene.repeat(lambda: scene.view.execute("SCRIPT", "FLUSH"))


def _out_of_memory(scene: Scene) -> None:
    scene.view.config_set(maxmemory=1)
    scene.wait()
    scene.view.config_set(maxmemory=0)


def _evicting(scene: Scene) -> None:
    policy = scene.rng.choice(["allkeys-random", "volatile-ttl", "volatile-lru"])
    scene.view.config_set(maxmemory_policy=policy)
    scene.view.config_set(maxmemory=1)
    scene.wait()
    scene.view.config_set(maxmemory=0)
    scene.view.config_set(maxmemory_policy="noeviction")


def _user(scene: Scene, *commands: tuple[Word, ...]) -> None:
    """The workers' user is changed, and given back its rights in the end."""
    for reply in scene.view.pipeline(list(commands)):
        if isinstance(reply, hiredis.ReplyError):
            raise reply
    scene.wait()
    scene.view.acl("SETUSER", USER, *ALL_RIGHTS)


def _password_changed(scene: Scene) -> None:
    _user(
        scene,
        ("ACL", "SETUSER", USER, "resetpass", ">another"),
        ("CLIENT", "KILL", "USER", USER),
    )


def _right_withdrawn(scene: Scene) -> None:
    rule = scene.rng.choice(["-set", "-@write", "-@all", "resetkeys", "-info", "-@scripting"])
    _user(scene, ("ACL", "SETUSER", USER, rule))


def _user_deleted(scene: Scene) -> None:
    _user(scene, ("ACL", "DELUSER", USER))


def _in_a_slow_script(scene: Scene) -> None:
    with busy(scene.arena.look, scene.server):
        scene.wait()


def _emptied(scene: Scene) -> None:
    scene.view.execute("FLUSHALL")
    scene.wait()


def _replica(scene: Scene) -> None:
    servers = scene.arena.servers
    master = servers[(scene.index + scene.rng.randrange(1, len(servers))) % len(servers)]
    scene.view.execute("REPLICAOF", master.host, master.port)
    scene.wait()
    scene.view.execute("REPLICAOF", "NO", "ONE")


MAKERS: dict[str, Maker] = {
    "frozen": _frozen,
    "killed, back empty": lambda scene: _killed(scene, empty=True),
    IN_TURN: lambda scene: _killed(scene, empty=True),
    "killed, back with its data": lambda scene: _killed(scene, empty=False),
    "late": _late,
    "cut off": _cut_off_from_all,
    "half-open": _half_open,
    "black hole": _black_hole,
    "dripping": _dripping,
    "cut in mid-reply": _cut_in_mid_reply,
    "refusing": _refusing,
    "hanging up": _hanging_up,
    "clients killed": _clients_killed,
    "paused": _paused,
    "writes paused": lambda scene: _paused(scene, "WRITE"),
    "scripts flushed": _scripts_flushed,
    "out of memory": _out_of_memory,
    "password changed": _password_changed,
    "right withdrawn": _right_withdrawn,
    "user deleted": _user_deleted,
    "in a slow script": _in_a_slow_script,
    "a replica": _replica,
    "emptied": _emptied,
    "evicting": _evicting,
    "clock ahead": lambda scene: _clock(scene, CLOCK_JUMP_S),
    "clock behind": lambda scene: _clock(scene, -CLOCK_BEHIND_S),
}
