"""PURE: which command asks a server what, and what its reply means.

Each verb has *forms*, the native ones first. A connection prefers one form per verb (found by probing
at connect, `greeting.py`) and moves on to the next when the server refuses it, within the same request:

    grant    SET key token NX PX ttl                            every server
    fenced   MULTI, SET fence-key seed NX PX lifetime,          Redis >= 8.4, Valkey >= 8.1
             SET key token NX PX ttl, INCR fence-key, EXEC
             EVALSHA, then EVAL                                 others
    confirm  MULTI, SET fence-key fence-gap NX PX lifetime,     Redis >= 8.4, Valkey >= 8.1
             SET key token IFEQ token PX ttl,
             INCRBY fence-key gap, PEXPIRE fence-key lifetime, EXEC
             EVALSHA, then EVAL                                 others
    renew    SET key token IFEQ token PX ttl                    Redis >= 8.4, Valkey >= 8.1
             EVALSHA, then EVAL                                 others
    revoke   DELEX key IFEQ token                               Redis >= 8.4 (redis.io, DELEX)
             DELIFEQ key token                                  Valkey >= 9.0 (valkey.io, DELIFEQ)
             EVALSHA, then EVAL                                 others
    inspect  GET key + PTTL key

The fence key is `{key}:fence`, braces included: in a cluster's terms the same slot, unless the name has
braces of its own. An error inside EXEC undoes nothing, and nothing has to be undone: counters only rise,
also when the lock is refused or no longer ours (`_core/fence.py`). Where MULTI itself is refused, what
follows it is executed all the same: the lock key may be set then, without a vote.

A revoke that finds nothing of ours is followed by EXISTS key where somebody reads the report.
Two traps these forms avoid: DELEX without a condition deletes whatever is there, and SET ... IFEQ
without PX removes the ttl. So the condition and the PX are written here, once, and nowhere else.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import hiredis

from aioredlock2._core.fence import FENCE_MAX, LIFETIME_S, SEED_MIN
from aioredlock2._node import ABSENT, NON_LOCK, Request, Sighting, Verb
from aioredlock2._redis import scripts
from aioredlock2.errors import printable
from aioredlock2.outcomes import Vote

__all__ = [
    "FORMS",
    "NO",
    "WHOSE",
    "YES",
    "Answer",
    "Command",
    "Dialect",
    "Doubt",
    "Form",
    "Refusal",
    "cause_of",
    "ends_the_link",
    "error_in",
    "fence_key",
    "is_passing",
    "pack",
    "pack_words",
    "probe_command",
    "read",
    "refusal_of",
]

Command = tuple[str | int | float | bytes | memoryview, ...]
Answer = tuple[Vote, object]
YES: Answer = (Vote.GRANTED, None)
NO: Answer = (Vote.DENIED, None)
CAUSE_CHARS_MAX = 160


class Refusal(enum.Enum):
    """A reply that says nothing about the key: another form may get an answer."""

    FOR_GOOD = "this server or user doesn't have the command"
    ONCE = "not this time"


class Doubt(str):
    """A cause that speaks against the whole connection: perhaps replies and requests are shifted."""

    __slots__ = ()


@dataclass(frozen=True, eq=False, slots=True)
class Form:
    """One way of asking."""

    name: str
    pack: Callable[[Request], Command | tuple[Command, ...]]
    """The words of its command, or several commands if it has as many replies."""
    yes: object = ...
    """The reply that means "yes, your token"; nothing does if it is left out."""
    no: object = ...
    """The reply that means "no"."""
    replies: int = 1


LIFETIME_MS = LIFETIME_S * 1000
MULTI: Command = (b"MULTI",)
EXEC: Command = (b"EXEC",)


def fence_key(key: bytes) -> bytes:
    """Where a node keeps the counter that belongs to a lock key."""
    return b"{%b}:fence" % key


def _fenced_grant(r: Request) -> tuple[Command, ...]:
    counter = fence_key(r.key)
    return (
        MULTI,
        (b"SET", counter, r.fence, b"NX", b"PX", LIFETIME_MS),
        (b"SET", r.key, r.token, b"NX", b"PX", r.ttl_ms),
        (b"INCR", counter),
        EXEC,
    )


def _confirmation(r: Request) -> tuple[Command, ...]:
    counter = fence_key(r.key)
    return (
        MULTI,
        (b"SET", counter, r.fence - r.gap, b"NX", b"PX", LIFETIME_MS),
        (b"SET", r.key, r.token, b"IFEQ", r.token, b"PX", r.ttl_ms),
        (b"INCRBY", counter, r.gap),
        (b"PEXPIRE", counter, LIFETIME_MS),
        EXEC,
    )


def _fence_script(how: bytes, script: bytes) -> Callable[[Request], Command]:
    return lambda r: (
        *(how, script, 2, r.key, fence_key(r.key)),
        *(r.token, r.fence, LIFETIME_MS, r.ttl_ms),
    )


def _renew_script(how: bytes, script: bytes) -> Callable[[Request], Command]:
    return lambda request: (how, script, 1, request.key, request.token, request.ttl_ms)


def _revoke_script(how: bytes, script: bytes) -> Callable[[Request], Command]:
    return lambda request: (how, script, 1, request.key, request.token)


SET_NX = Form("SET NX", lambda r: (b"SET", r.key, r.token, b"NX", b"PX", r.ttl_ms), b"OK", None)
SET_IFEQ = Form(
    "SET IFEQ",
    lambda r: (b"SET", r.key, r.token, b"IFEQ", r.token, b"PX", r.ttl_ms),
    b"OK",
    None,
)
FENCED = Form("MULTI INCR", _fenced_grant, replies=5)
FENCED_EVALSHA = Form("EVALSHA", _fence_script(b"EVALSHA", scripts.GRANT_FENCED.sha1), no=None)
FENCED_EVAL = Form("EVAL", _fence_script(b"EVAL", scripts.GRANT_FENCED.text), no=None)
CONFIRM = Form("MULTI INCRBY", _confirmation, replies=6)
CONFIRM_EVALSHA = Form("EVALSHA", _fence_script(b"EVALSHA", scripts.CONFIRM.sha1), 1, 0)
CONFIRM_EVAL = Form("EVAL", _fence_script(b"EVAL", scripts.CONFIRM.text), 1, 0)
DELEX = Form("DELEX", lambda r: (b"DELEX", r.key, b"IFEQ", r.token), 1, 0)
DELIFEQ = Form("DELIFEQ", lambda r: (b"DELIFEQ", r.key, r.token), 1, 0)
RENEW_EVALSHA = Form("EVALSHA", _renew_script(b"EVALSHA", scripts.RENEW.sha1), 1, 0)
RENEW_EVAL = Form("EVAL", _renew_script(b"EVAL", scripts.RENEW.text), 1, 0)
REVOKE_EVALSHA = Form("EVALSHA", _revoke_script(b"EVALSHA", scripts.REVOKE.sha1), 1, 0)
REVOKE_EVAL = Form("EVAL", _revoke_script(b"EVAL", scripts.REVOKE.text), 1, 0)
WHOSE = Form("EXISTS", lambda r: (b"EXISTS", r.key))
"""Asked after a revoke that found nothing of ours, to tell an expired key from a foreign one."""
INSPECT = Form("GET PTTL", lambda r: ((b"GET", r.key), (b"PTTL", r.key)), replies=2)

FORMS: dict[Verb, tuple[Form, ...]] = {
    Verb.GRANT: (SET_NX,),
    Verb.GRANT_FENCED: (FENCED, FENCED_EVALSHA, FENCED_EVAL),
    Verb.CONFIRM: (CONFIRM, CONFIRM_EVALSHA, CONFIRM_EVAL),
    Verb.RENEW: (SET_IFEQ, RENEW_EVALSHA, RENEW_EVAL),
    Verb.REVOKE: (DELEX, DELIFEQ, REVOKE_EVALSHA, REVOKE_EVAL),
    Verb.INSPECT: (INSPECT,),
}
NATIVE = frozenset((SET_IFEQ, DELEX, DELIFEQ))


def probe_command(form: Form, key: bytes, token: bytes) -> bytes:
    """The real command on a key that never exists: it changes nothing and tells what is allowed."""
    return _packed(form, Request(Verb.REVOKE, key, token, 1))


def pack_words(words: Command) -> bytes:
    """One command in RESP."""
    # hiredis' stub takes a tuple of one for a tuple of any length.
    return cast("bytes", hiredis.pack_command(words))  # type: ignore[arg-type]


def _packed(form: Form, request: Request) -> bytes:
    said = form.pack(request)
    if form.replies == 1:
        return pack_words(cast("Command", said))
    return b"".join(pack_words(words) for words in cast("tuple[Command, ...]", said))


def pack(form: Form, request: Request) -> bytes:
    """The bytes of `request` in this form; those of the form asked for first are made once."""
    if request.form is form:
        return request.data
    data = _packed(form, request)
    if request.form is None:
        request.form, request.data = form, data
    return data


def refusal_of(form: Form, text: str) -> Refusal | None:
    """Whether an error reply is about the command rather than about the key."""
    if text.startswith("NOSCRIPT"):
        return Refusal.ONCE
    if text.startswith(("ERR unknown command", "ERR syntax error", "ERR wrong number", "NOPERM")):
        return Refusal.FOR_GOOD
    if form in NATIVE:
        # At maxmemory SET is refused, but the script's PEXPIRE needs no memory.
        return Refusal.ONCE if text.startswith("OOM") else None
    # Inside a script, ACL failures come wrapped, with other words in each version.
    return Refusal.FOR_GOOD if "NOPERM" in text or "ACL failure" in text else None


def read(form: Form, request: Request, reply: object) -> Answer | Refusal:
    """What a reply to `request` means."""
    # True is no 1 and False no 0 here, hence the types: RESP3 has booleans.
    if type(reply) is type(form.yes) and reply == form.yes:
        return YES
    if type(reply) is type(form.no) and reply == form.no:
        return NO
    if isinstance(reply, hiredis.ReplyError):
        return _read_error(form, request, str(reply))
    if form.replies > 1:
        return _read_parts(form, request, cast("list[object]", reply))
    if request.verb is Verb.GRANT_FENCED and type(reply) is int and reply >= SEED_MIN:
        return _read_counter(reply)  # anything less is the answer to something else
    if form is WHOSE:
        return Vote.DENIED, "another value" if reply == 1 else ABSENT
    return Vote.FAULTED, Doubt(f"unexpected reply to {form.name} of type {type(reply).__name__}")


def _read_error(form: Form, request: Request, text: str) -> Answer | Refusal:
    if "WRONGTYPE" in text or "should be of string type" in text:
        return Vote.DENIED, NON_LOCK
    if form is WHOSE:
        return Vote.DENIED, "no key or another value; EXISTS: " + cause_of(request, text)
    if (refusal := refusal_of(form, text)) is not None:
        return refusal
    return Vote.FAULTED, cause_of(request, text)


def cause_of(request: Request, text: str) -> str:
    """A server's error as one short line: servers echo arguments, and a token is one of them."""
    if request.token:
        text = text.replace(request.token.decode(), "...")
    for code in ("MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"):
        if text.startswith(code):
            return f"cluster node given as independent node ({code})"
    text = text.partition(", with args beginning")[0]
    return printable(text[:CAUSE_CHARS_MAX])


def ends_the_link(cause: str) -> bool:
    """Whether, after this, a fresh connection is the better one.

    Replies may be shifted (Doubt), the master may be another one now, or the password.
    """
    return isinstance(cause, Doubt) or cause.startswith(("READONLY", "NOAUTH"))


def is_passing(cause: str) -> bool:
    """Whether the server only can't answer just now: a delete is worth another try."""
    return cause.startswith(("LOADING", "BUSY", "MISCONF", "MASTERDOWN", "NOREPLICAS"))


def _read_parts(form: Form, request: Request, replies: list[object]) -> Answer | Refusal:
    """The answer to several commands: the first error among their replies, or what they say together."""
    text = next((str(part) for part in replies if isinstance(part, hiredis.ReplyError)), None)
    if text is not None:
        answer = _read_error(form, request, text)
        if form is INSPECT and isinstance(answer, Refusal):
            return Vote.FAULTED, cause_of(request, text)
        return answer
    if form is INSPECT:
        return _read_inspection(*replies)
    return _read_transaction(form, request, replies)


def _read_transaction(form: Form, request: Request, replies: list[object]) -> Answer | Refusal:
    begun, *queued, done = replies
    if begun != b"OK" or any(word != b"QUEUED" for word in queued):
        done = None
    match done:
        case [_, b"OK", counter] if form is FENCED and type(counter) is int:
            return _read_counter(counter)
        case [_, b"OK", counter, _] if form is CONFIRM and type(counter) is int:
            return YES
        case [_, None, *rest] if len(rest) == form.replies - 4:
            return NO
        case [_, hiredis.ReplyError() as error, *_]:
            return _read_error(form, request, str(error))
        case [_, b"OK", hiredis.ReplyError() as error, *_]:
            # The key is ours, and will be taken back: it only doesn't count.
            return Vote.FAULTED, "the fence key: " + cause_of(request, str(error))
    return Vote.FAULTED, Doubt(f"unexpected reply to {form.name}")


def error_in(reply: object) -> str:
    """The text of the first error in a reply, however deep; empty if there is none."""
    if isinstance(reply, list):
        return next(filter(None, map(error_in, reply)), "")
    return str(reply) if isinstance(reply, hiredis.ReplyError) else ""


def _read_counter(counter: int) -> Answer:
    if 0 < counter <= FENCE_MAX:
        return Vote.GRANTED, counter
    return Vote.FAULTED, "the fence key: its number is not from 1 to 2**53"


def _read_inspection(value: object, ttl_ms: object) -> Answer:
    if not (value is None or type(value) is bytes) or type(ttl_ms) is not int:
        return Vote.FAULTED, Doubt(f"unexpected reply to {INSPECT.name}")
    if value is None or ttl_ms == -2:
        return Vote.DENIED, None
    return Vote.GRANTED, Sighting(value, ttl_ms)


class Dialect:
    """What one connection's server was found to understand: the preferred form of each verb."""

    __slots__ = ("preferred",)

    def __init__(self, preferred: dict[Verb, Form] | None = None) -> None:
        self.preferred = [forms[0] for forms in FORMS.values()]
        """For each verb the form to try first."""
        for verb, form in (preferred or {}).items():
            self.preferred[verb] = form
        if self.preferred[Verb.RENEW] is not SET_IFEQ:
            # Without IFEQ there is no confirmation by native commands. A grant goes by the script's text
            # at first: refused by its name, it would be put again behind what was asked since.
            self.preferred[Verb.GRANT_FENCED] = FENCED_EVAL
            self.preferred[Verb.CONFIRM] = CONFIRM_EVALSHA

    @staticmethod
    def next_form(verb: Verb, refused: Form, first: Form) -> Form | None:
        """The form to try after `refused`, or None when all were tried in turn.

        The order goes round, from the `first` form that this request was asked in, so that a server
        that *gained* a native command, or a user that lost scripting, is found as well. What is
        preferred may change while requests are in flight, and is no end for them.
        """
        forms = FORMS[verb]
        following = forms[(forms.index(refused) + 1) % len(forms)]
        return None if following is first else following

    def prefer(self, verb: Verb, worked: Form) -> None:
        """Begin with this form from now on."""
        # EVAL has loaded the script: the short form serves from here.
        forms = FORMS[verb]
        self.preferred[verb] = forms[-2] if worked.name == "EVAL" else worked

    @property
    def commands(self) -> tuple[str, str]:
        """The commands in use to revoke and to renew."""
        return self.preferred[Verb.REVOKE].name, self.preferred[Verb.RENEW].name
