"""Planted bugs: each breaks the real library in one place while it is on, and has to be found.

A mutation is an edit of a function's source, by the text that is replaced: where that text is gone, the
mutation can't be planted, and says so.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from aioredlock2._attempt import Attempt
from aioredlock2._core import validity
from aioredlock2._core.ballot import Ballot, grant_rule
from aioredlock2._engine import Engine
from aioredlock2._hold import Hold
from aioredlock2._lock import _Entry
from aioredlock2._node import Request
from aioredlock2._nodes.redis import RedisNode
from aioredlock2._redis import dialect
from aioredlock2._redis.transport import Link
from aioredlock2._session import Session
from aioredlock2._watchdog import Watchdog

__all__ = ["MUTATIONS", "Edit", "Mutation"]


@dataclass(frozen=True, slots=True)
class Edit:
    """`old` becomes `new` in one function."""

    function: Callable[..., Any]
    old: str
    new: str

    @property
    def current(self) -> object:
        """What it is now, planted or not."""
        return self._plain.__code__

    @property
    def _plain(self) -> Any:
        return inspect.unwrap(self.function)

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """The function is another one for a while, for whoever has it already."""
        function = self._plain
        source = textwrap.dedent(inspect.getsource(function))
        if source.count(self.old) != 1:
            raise ValueError(f"{self.old!r} is not once in {function.__qualname__}")
        scope: dict[str, Any] = {}
        code = compile(
            "from __future__ import annotations\n" + source.replace(self.old, self.new), "m", "exec"
        )
        exec(code, vars(sys.modules[function.__module__]), scope)  # noqa: S102
        was = function.__code__
        function.__code__ = scope[function.__name__].__code__
        try:
            yield
        finally:
            function.__code__ = was


@dataclass(frozen=True, slots=True)
class Packed:
    """Another command in the place of a form's."""

    form: dialect.Form
    pack: Callable[[Request], dialect.Command]

    @property
    def current(self) -> object:
        """What it is now, planted or not."""
        return self.form.pack

    @contextlib.contextmanager
    def made(self) -> Iterator[None]:
        """The form is packed otherwise for a while."""
        was = self.form.pack
        object.__setattr__(self.form, "pack", self.pack)
        try:
            yield
        finally:
            object.__setattr__(self.form, "pack", was)


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    edits: tuple[Edit | Packed, ...]

    @contextlib.contextmanager
    def planted(self) -> Iterator[None]:
        """It is there for a while."""
        with contextlib.ExitStack() as stack:
            for edit in self.edits:
                stack.enter_context(edit.made())
            yield


def _edit(function: Callable[..., Any], old: str, new: str) -> Mutation:
    return Mutation((Edit(function, old, new),))


def _delete(request: Request) -> dialect.Command:
    return (b"DEL", request.key)


MUTATIONS: dict[str, Mutation] = {
    "quorum one too small": _edit(Ballot.__init__, "nodes // 2 + 1", "max(1, nodes // 2)"),
    "quorum of the nodes that answer": _edit(
        grant_rule,
        "ballot.granted >= ballot.quorum",
        "ballot.granted > (ballot.nodes - ballot.broken) // 2",
    ),
    "an error counts as a vote": _edit(
        dialect._read_error, "return Vote.FAULTED, cause_of(request, text)", "return YES"
    ),
    "validity from the first round": _edit(
        Attempt.run, "valid_until(won.started_at", "valid_until(self._started_at"
    ),
    "validity from the decision": _edit(
        Attempt.run, "valid_until(won.started_at", "valid_until(session.runtime.clock()"
    ),
    "drift left out": _edit(validity.valid_until, " - terms.drift", ""),
    "won too late is kept": _edit(
        Attempt._keeps,
        "return self._session.runtime.clock() < valid_until",
        "return True or valid_until",
    ),
    "token shared by all rounds": _edit(
        Engine.grant,
        "self.runtime.new_token()",
        "vars(self).setdefault('tokens', {}).setdefault(key, self.runtime.new_token())",
    ),
    "no clean-up after a cancellation": _edit(
        Engine.grant, "self.clean_up(asked)\n        raise", "raise"
    ),
    "no clean-up after a failed round": _edit(Attempt._pause, "session.engine.clean_up(asked)", ""),
    "clean-up only where granted": _edit(Engine.clean_up, "is not Vote.DENIED", "is Vote.GRANTED"),
    "release only where granted": _edit(
        Engine.sent_to,
        "~asked.unsent & (1 << len(self.nodes)) - 1",
        "sum(1 << i for i, vote in enumerate(asked.votes) if vote is Vote.GRANTED)",
    ),
    "release without its condition": Mutation(
        tuple(
            Packed(form, _delete)
            for form in (
                dialect.DELEX,
                dialect.DELIFEQ,
                dialect.REVOKE_EVALSHA,
                dialect.REVOKE_EVAL,
            )
        )
    ),
    "deletes that failed are forgotten": _edit(
        RedisNode._owe, "self._host is not None", "self is None"
    ),
    "a grant is sent again after a reconnect": _edit(
        RedisNode.link_lost, "request.verb is REVOKE", "request.verb in (GRANT, REVOKE)"
    ),
    "a late reply answers the next request": _edit(
        Link.missed,
        "self._catch_up_to = self._mux.expected",
        "self._catch_up_to = self._pending and self._pending.popleft() and 0 or 0",
    ),
    "guard ignored": _edit(RedisNode._guard_left, "return max(0.0, ", "return 0 * max(0.0, "),
    "guard too short": _edit(Session.guard_period, "longest + GUARD_S_EXTRA", "longest / 10"),
    "extension without its condition": Mutation(
        (Packed(dialect.SET_IFEQ, lambda r: (b"SET", r.key, r.token, b"PX", r.ttl_ms)),)
    ),
    "extension without a ttl": Mutation(
        (Packed(dialect.SET_IFEQ, lambda r: (b"SET", r.key, r.token, b"IFEQ", r.token)),)
    ),
    "extension counts after its end": _edit(
        Watchdog._decided, "if now >= hold.valid_until:", "if False:"
    ),
    "extension counts from its end": _edit(
        Watchdog._decided, "valid_until(asked.started_at", "valid_until(now"
    ),
    "extension counts what it will plant": _edit(
        dialect.read,
        "        return NO\n",
        "        return YES if request.verb is Verb.RENEW else NO\n",
    ),
    "renewal after the release": Mutation(
        (
            Edit(Watchdog.release, "    self._forget(hold)\n", "    pass\n"),
            Edit(Watchdog._attend, "if hold.state is not HELD:", "if hold.state is LOST:"),
            Edit(Watchdog._plan, "if hold.state is not HELD:", "if hold.state is LOST:"),
            Edit(Hold.is_valid, "self.state is HELD and ", ""),
        )
    ),
    "loss only by vote": _edit(
        Watchdog._attend, "self._lose(hold, _why_over(hold, now))", "self._forget(hold)"
    ),
    "loss only by the clock": _edit(
        Watchdog._decided, "elif asked.verdict is Verdict.REFUSED:", "elif False:"
    ),
    "loss that the body isn't told": _edit(_Entry.cancel_body, "self.task.cancel(", "str("),
    "no ticks": _edit(Watchdog._arm, "now + self._tick", "now + 1000 * self._tick"),
    "fence without a quorum": _edit(
        Engine._find_fence, "len(wanted.level) >= won.quorum", "wanted.level"
    ),
    "fence counts nodes that never gave one": _edit(
        Engine._confirm, "asked.skip(index, Vote.FAULTED,", "asked.cast(index, Vote.GRANTED,"
    ),
}
