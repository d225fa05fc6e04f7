"""A model server: what the four kinds of real servers do with the commands this library sends.

It executes whole commands, in the order in which they arrive, and answers in RESP3. Its clock is its
own: keys expire by it, uptime is told by it. The integration tests ask the four kinds of real servers.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import ClassVar

from aioredlock2._redis import scripts
from tests.simulation.history import Expired, History, Removed
from tests.simulation.words import is_lock_key
from tests.simulation.world import Clock, World

__all__ = ["KINDS", "Server"]

Words = Sequence[bytes]

KINDS = {
    "valkey 9.1": frozenset((b"IFEQ", b"DELIFEQ")),
    "redis 8.10": frozenset((b"IFEQ", b"DELEX")),
    "valkey 8.1": frozenset((b"IFEQ",)),
    "redis 6.2": frozenset[bytes](),
}
"""What each kind has beyond scripts."""
OK, NIL = b"+OK\r\n", b"_\r\n"
SYNTAX = b"-ERR syntax error\r\n"


def _int(number: int) -> bytes:
    return b":%d\r\n" % number


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


class Server:
    """One server process and its memory."""

    def __init__(
        self, world: World, history: History, name: str, *, kind: str, clock: Clock, seed: object
    ) -> None:
        self._world = world
        self._history = history
        self.name = name
        self.kind = kind
        self.has = KINDS[kind]
        self.clock = clock
        self._rng = random.Random(f"{seed} {name}")
        self._keys: dict[bytes, tuple[bytes, float]] = {}
        self._loaded: set[bytes] = set()
        self.ailment = ""
        """The error that every write and read of a key is answered with, empty if it is well."""
        self.start()

    def start(self) -> None:
        """A new process, with whatever is in memory."""
        self.run_id = self._rng.randbytes(20).hex()
        self.replid = self._rng.randbytes(20).hex()
        self._started = self._reading()
        self._loaded.clear()

    def _reading(self) -> float:
        return self.clock.at(self._world.now)

    def get(self, key: bytes) -> bytes | None:
        """What lies under `key` now."""
        stored = self._keys.get(key)
        if stored is None:
            return None
        value, until = stored
        if until > self._reading():
            return value
        del self._keys[key]
        if is_lock_key(key):
            self._history.expired.append(Expired(self.clock.when(until), self.name, value))
        return None

    def put(self, key: bytes, value: bytes, ttl_ms: int | None) -> None:
        """Set `key`, whatever was there."""
        if ttl_ms is None:
            self._history.odd(
                self._world.now, f"ETERNAL {key!r} was set on {self.name} without a ttl"
            )
            ttl_ms = 10**9
        self._keys[key] = (value, self._reading() + ttl_ms / 1000)

    def forget(self) -> None:
        """Lose everything."""
        self._keys.clear()

    def flush_scripts(self) -> None:
        """SCRIPT FLUSH."""
        self._loaded.clear()

    def lock_keys(self) -> dict[bytes, bytes]:
        """The lock keys there now, and their tokens."""
        there = {key: self.get(key) for key in list(self._keys) if is_lock_key(key)}
        return {key: value for key, value in there.items() if value is not None}

    # Commands.

    def execute(self, commands: Sequence[Words], by: str) -> bytes:
        """The answers to whole commands, MULTI ... EXEC included."""
        answers: list[bytes] = []
        queued: list[Words] | None = None
        for words in commands:
            name = words[0]
            if name == b"MULTI":
                queued = []
                answers.append(OK)
            elif name == b"EXEC" and queued is not None:
                results = [self._answer(each, by) for each in queued]
                answers.append(b"*%d\r\n%b" % (len(results), b"".join(results)))
                queued = None
            elif queued is not None:
                queued.append(words)
                answers.append(b"+QUEUED\r\n")
            else:
                answers.append(self._answer(words, by))
        return b"".join(answers)

    def _answer(self, words: Words, by: str) -> bytes:
        command = self.COMMANDS.get(words[0])
        if command is None or (words[0] in (b"DELEX", b"DELIFEQ") and words[0] not in self.has):
            return b"-ERR unknown command '%b'\r\n" % words[0]
        if self.ailment and words[0] not in (b"HELLO", b"CLIENT", b"INFO"):
            return f"-{self.ailment}\r\n".encode()
        return command(self, words, by)

    def _hello(self, _words: Words, _by: str) -> bytes:
        kind, _, version = self.kind.partition(" ")
        fields = (b"server", kind.encode(), b"version", version.encode(), b"role", b"master")
        return b"%%%d\r\n" % (len(fields) // 2) + b"".join(map(_bulk, fields))

    def _client(self, _words: Words, _by: str) -> bytes:
        return OK

    def _info(self, _words: Words, _by: str) -> bytes:
        uptime = int(self._reading() - self._started)
        text = (
            f"run_id:{self.run_id}\r\nmaster_replid:{self.replid}\r\n"
            f"uptime_in_seconds:{uptime}\r\nrole:master\r\nmaxmemory:0\r\n"
        )
        return _bulk(text.encode())

    def _set(self, words: Words, _by: str) -> bytes:
        key, value, options = words[1], words[2], list(words[3:])
        ttl_ms = int(options[options.index(b"PX") + 1]) if b"PX" in options else None
        held = self.get(key)
        if b"IFEQ" in options:
            if b"IFEQ" not in self.has:
                return SYNTAX
            if held != options[options.index(b"IFEQ") + 1]:
                return NIL
        elif b"NX" in options and held is not None:
            return NIL
        self.put(key, value, ttl_ms)
        return OK

    def _get(self, words: Words, _by: str) -> bytes:
        value = self.get(words[1])
        return NIL if value is None else _bulk(value)

    def _pttl(self, words: Words, _by: str) -> bytes:
        if self.get(words[1]) is None:
            return _int(-2)
        return _int(max(0, round((self._keys[words[1]][1] - self._reading()) * 1000)))

    def _exists(self, words: Words, _by: str) -> bytes:
        return _int(self.get(words[1]) is not None)

    def _incrby(self, words: Words, _by: str) -> bytes:
        value = int(self.get(words[1]) or b"0") + (int(words[2]) if len(words) > 2 else 1)
        until = self._keys[words[1]][1] if words[1] in self._keys else 1e18
        self._keys[words[1]] = (b"%d" % value, until)
        return _int(value)

    def _pexpire(self, words: Words, _by: str) -> bytes:
        value = self.get(words[1])
        if value is None:
            return _int(0)
        self.put(words[1], value, int(words[2]))
        return _int(1)

    def _delete_if(self, words: Words, by: str) -> bytes:
        return self._remove(words[1], words[-1], by)

    def _del(self, words: Words, by: str) -> bytes:
        held = self.get(words[1])
        return _int(0) if held is None else self._remove(words[1], held, by, wanted=b"")

    def _remove(self, key: bytes, token: bytes, by: str, wanted: bytes | None = None) -> bytes:
        if self.get(key) != token:
            return _int(0)
        del self._keys[key]
        said = token if wanted is None else wanted
        self._history.removed.append(Removed(self._world.now, self.name, by, token, said))
        return _int(1)

    # Scripts, by what their text says.

    def _eval(self, words: Words, by: str) -> bytes:
        by_text = words[0] == b"EVAL"
        for script, action in SCRIPTS.items():
            if words[1] == (script.text if by_text else script.sha1):
                if by_text:
                    self._loaded.add(script.sha1)
                elif script.sha1 not in self._loaded:
                    break
                keys = int(words[2])
                return action(self, words[3 : 3 + keys], words[3 + keys :], by)
        return b"-NOSCRIPT No matching script.\r\n"

    def _script_renew(self, keys: Words, arguments: Words, _by: str) -> bytes:
        if self.get(keys[0]) != arguments[0]:
            return _int(0)
        self.put(keys[0], arguments[0], int(arguments[1]))
        return _int(1)

    def _script_revoke(self, keys: Words, arguments: Words, by: str) -> bytes:
        return self._remove(keys[0], arguments[0], by)

    def _script_grant_fenced(self, keys: Words, arguments: Words, _by: str) -> bytes:
        token, seed, lifetime_ms, ttl_ms = arguments
        if self.get(keys[0]) not in (None, token):
            return NIL
        counter = max(int(self.get(keys[1]) or b"0") + 1, int(seed))
        self.put(keys[1], b"%d" % counter, int(lifetime_ms))
        self.put(keys[0], token, int(ttl_ms))
        return _int(counter)

    def _script_confirm(self, keys: Words, arguments: Words, _by: str) -> bytes:
        token, fence, lifetime_ms, _ttl_ms = arguments
        if self.get(keys[0]) != token:
            return _int(0)
        if int(self.get(keys[1]) or b"0") < int(fence):
            self.put(keys[1], fence, int(lifetime_ms))
        return _int(1)

    COMMANDS: ClassVar[dict[bytes, Callable[[Server, Words, str], bytes]]] = {
        b"HELLO": _hello,
        b"CLIENT": _client,
        b"INFO": _info,
        b"SET": _set,
        b"GET": _get,
        b"PTTL": _pttl,
        b"EXISTS": _exists,
        b"INCR": _incrby,
        b"INCRBY": _incrby,
        b"PEXPIRE": _pexpire,
        b"DELEX": _delete_if,
        b"DELIFEQ": _delete_if,
        b"DEL": _del,
        b"EVAL": _eval,
        b"EVALSHA": _eval,
    }


SCRIPTS: dict[scripts.Script, Callable[[Server, Words, Words, str], bytes]] = {
    scripts.RENEW: Server._script_renew,
    scripts.REVOKE: Server._script_revoke,
    scripts.GRANT_FENCED: Server._script_grant_fenced,
    scripts.CONFIRM: Server._script_confirm,
}
