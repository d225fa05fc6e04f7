"""Verdicts over a history in true time; they know neither the simulator nor the library.

Each check gives the violations it finds, one line each. A tenure's *window* is the time in which its
holder may rely on it: from when the call returned until the deadline by the holder's clock, the release
or the loss, whichever comes first.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.simulation.history import Attempt, Command, History, Tenure, Wired
from tests.simulation.options import Options

__all__ = ["GRANT_S_MAX", "Verdict", "judge"]

GRANT_S_MAX = 5.0
"""In a healed system a free name is granted within so many seconds, whoever else wants it."""
TURNS = 4
"""Loop turns from an event to whoever has to be told."""
EARLY_S = 1e-6
TICK_S_MAX, TICK_SHARE = 1.0, 0.1
"""After a suspend the loss is noticed at the watchdog's next tick, at the latest."""
OWED_SHARE = 0.98
"""A delete is owed for a ttl, by the client's clock. A grant that is executed later still, from the
buffers of a connection that is long gone, leaves a key for one ttl: that is the documented bound."""
SETTLED_S = 0.1
"""So long after a connection is up, all that is owed there has been sent."""


@dataclass
class Verdict:
    """What the checks found."""

    violations: list[str] = field(default_factory=list)
    explained: list[str] = field(default_factory=list)
    """Overlaps that follow from an assumption broken on purpose."""


def judge(history: History, options: Options) -> Verdict:
    """All checks."""
    verdict = Verdict()
    for line, at in overlaps(history):
        cause = [what for broke_at, what in history.broken if broke_at <= at]
        if options.broken and (cause or "fast node" in options.broken):
            verdict.explained.append(f"{line}; {cause[-1] if cause else 'nodes run fast'}")
        else:
            verdict.violations.append(line)
    verdict.violations += [
        *fences_not_growing(history),
        *late_grants(history),
        *foreign_keys_removed(history),
        *history.oddities,
    ]
    if "vm pause" not in options.broken:  # then no clock tells when things are due
        verdict.violations += [
            *deadlines_not_earned(history, options),
            *grants_of_no_worth(history, options),
            *losses_told_late(history, options),
            *keys_left_behind(history),
            *sent_after_the_end(history),
        ]
    return verdict


def window_end(tenure: Tenure, history: History) -> float:
    """When the holder can't rely on it any more."""
    died_at = history.stalls[tenure.process].died_at
    return min(
        tenure.until,
        tenure.released_at,
        tenure.voted_out_at,
        tenure.told_at,
        math.inf if died_at is None else died_at,
    )


def overlaps(history: History) -> Iterator[tuple[str, float]]:
    """Two holders at once, and since when."""
    by_name = defaultdict(list)
    for tenure in history.tenures:
        end = window_end(tenure, history)
        if end > tenure.granted_at:
            by_name[tenure.name].append((tenure.granted_at, end, tenure))
    for windows in by_name.values():
        windows.sort(key=lambda window: window[:2])
        longest = windows[0]
        for window in windows[1:]:
            if window[0] < longest[1]:
                yield (
                    (
                        f"{window[0]:.6f} OVERLAP {window[2].name}: {window[2].process} holds it while "
                        f"{longest[2].process} does, until {min(longest[1], window[1]):.6f}"
                    ),
                    window[0],
                )
            longest = max(longest, window, key=lambda window: window[1])


def fences_not_growing(history: History) -> Iterator[str]:
    """A grant that was called for after another had returned has the larger fence; all are unique."""
    fenced: dict[str, list[Tenure]] = defaultdict(list)
    for tenure in history.tenures:
        if tenure.fence is not None:
            fenced[tenure.name].append(tenure)
    for name, tenures in fenced.items():
        returned = iter(sorted(tenures, key=lambda tenure: tenure.granted_at))
        ahead = next(returned, None)
        highest = None
        for tenure in sorted(tenures, key=lambda tenure: tenure.attempt.called_at):
            while ahead is not None and ahead.granted_at < tenure.attempt.called_at:
                if highest is None or ahead.fence > highest.fence:  # type: ignore[operator]
                    highest = ahead
                ahead = next(returned, None)
            if highest is not None and tenure.fence <= highest.fence:  # type: ignore[operator]
                yield (
                    f"{tenure.granted_at:.6f} FENCE {name}: {tenure.process} has {tenure.fence}, after "
                    f"{highest.fence} of {highest.process} at {highest.granted_at:.6f}"
                )
        seen: dict[int | None, Tenure] = {}
        for tenure in tenures:
            other = seen.setdefault(tenure.fence, tenure)
            if other is not tenure:
                yield f"{tenure.granted_at:.6f} FENCE {name}: {tenure.fence} is given twice"


def deadlines_not_earned(history: History, options: Options) -> Iterator[str]:
    """No deadline is later than the ttl less the drift after the first byte of a round with its token.

    And each is replaced before it has passed.
    """
    sent: dict[bytes, list[Command]] = defaultdict(list)
    for command in history.commands:
        if command.verb in ("grant", "renew"):
            sent[command.token].append(command)
    for tenure in history.tenures:
        commands = sent[tenure.token]
        for noticed_at, until in tenure.true_deadlines:
            best = max(
                (
                    command.at + (command.ttl * (1 - options.drift_factor) - 0.002)
                    for command in commands
                    if command.at <= noticed_at
                ),
                default=-math.inf,
            )
            # A client's clock may be slow, by half the allowance.
            slack = options.ttl * options.drift_factor / 2 + 1e-4
            if until > best + slack:
                yield (
                    f"{noticed_at:.6f} DEADLINE {tenure.name}: {tenure.process} counts until "
                    f"{until:.6f}, its last command gives {best:.6f}"
                )
                break
        yield from _extended_too_late(tenure, history)


def _extended_too_late(tenure: Tenure, history: History) -> Iterator[str]:
    deadlines = tenure.true_deadlines
    for (_, old), (noticed_at, new) in itertools.pairwise(deadlines):
        held_up = _in_the_turn(history, tenure.process, noticed_at)
        if new > old and noticed_at > old + 1e-3 and not held_up:
            yield (
                f"{noticed_at:.6f} REVIVED {tenure.name}: {tenure.process} extends to {new:.6f} "
                f"what was over at {old:.6f}"
            )


def grants_of_no_worth(history: History, options: Options) -> Iterator[str]:
    """A grant is worth its ttl since its round began, and is not over when the caller gets it."""
    for tenure in history.tenures:
        if _in_the_turn(history, tenure.process, tenure.granted_at):
            continue
        (_, made_at), ttl = tenure.attempt.tokens[-1], tenure.attempt.ttl
        _, until = tenure.true_deadlines[0]
        due = made_at + ttl - 2 * (ttl * options.drift_factor + 0.002)
        if until < due or until < tenure.granted_at:
            yield (
                f"{tenure.granted_at:.6f} WORTHLESS {tenure.name}: {tenure.process} gets it until "
                f"{until:.6f} by a round of {made_at:.6f}"
            )


def _in_the_turn(history: History, process: str, at: float) -> bool:
    """Whether the process was held up in the middle of the turn that ended at that time."""
    return any(start <= at <= end + EARLY_S for start, end in history.stalls[process].mistimed)


def losses_told_late(history: History, options: Options) -> Iterator[str]:
    """Whoever still holds at the deadline is told at once, or as soon as the process runs again."""
    for tenure in history.tenures:
        if not tenure.listens:
            continue
        stalls = history.stalls[tenure.process]
        slack = TURNS * options.turn_s + 1e-3
        if any(
            start < tenure.until + slack and end > tenure.granted_at - tenure.attempt.ttl
            for start, end in stalls.mistimed
        ):
            slack += min(tenure.attempt.ttl * TICK_SHARE, TICK_S_MAX) * 1.1
        due_at = tenure.until + slack
        for start, end in sorted(stalls.stalls):
            if start <= due_at < end + slack:
                due_at = end + slack
        died_at = stalls.died_at
        if tenure.released_at <= due_at or (died_at is not None and died_at <= due_at):
            continue
        if tenure.told_at > due_at:
            yield (
                f"{due_at:.6f} UNTOLD {tenure.name}: {tenure.process} is told at {tenure.told_at:.6f} "
                f"of the loss at {tenure.until:.6f}"
            )


def keys_left_behind(history: History) -> Iterator[str]:
    """A key that runs out although its owner gave it up, could delete it there, and did not."""
    owners: dict[bytes, tuple[Attempt, float]] = {}
    for attempt in history.attempts:
        following = [made_at for _, made_at in attempt.tokens[1:]]
        for (token, _), end in zip(attempt.tokens, [*following, attempt.ended_at], strict=False):
            owners[token] = (attempt, _given_up_at(attempt, token, end, history))
    revoked = {
        (command.token, command.wire) for command in history.commands if command.verb == "revoke"
    }
    deleted = {(removed.token, removed.server) for removed in history.removed}
    for expired in history.expired:
        if (expired.token, expired.server) in deleted or expired.token not in owners:
            continue
        attempt, given_up_at = owners[expired.token]
        for wire in history.wires.values():
            if (
                (wire.process, wire.server) == (attempt.process, expired.server)
                and (expired.token, wire.number) not in revoked
                and _was_usable(wire, given_up_at, expired.at, attempt.ttl, history)
            ):
                yield (
                    f"{expired.at:.6f} LEFT {attempt.name}: {attempt.process} gave up "
                    f"{expired.token[:8]!r} ({attempt.outcome}) at {given_up_at:.6f} and never deleted "
                    f"it on {expired.server}, connected since {wire.up_at:.6f}"
                )


def _was_usable(
    wire: Wired, given_up_at: float, expired_at: float, ttl: float, history: History
) -> bool:
    """Whether a delete that was owed since then should have been sent on this connection."""
    since = max(given_up_at, wire.up_at)
    return (
        since <= given_up_at + ttl * OWED_SHARE
        and min(expired_at, wire.down_at) - since >= SETTLED_S
        and not _held_up(history, wire.process, since, since + SETTLED_S)
    )


def _given_up_at(attempt: Attempt, token: bytes, end: float, history: History) -> float:
    died_at = history.stalls[attempt.process].died_at
    tenure = attempt.tenure
    if tenure is not None and tenure.token == token:
        at = math.inf if tenure.dropped else tenure.released_at
    else:
        at = end
    return math.inf if died_at is not None and died_at <= at + SETTLED_S else at


def _held_up(history: History, process: str, start: float, end: float) -> bool:
    return any(begun < end and over > start for begun, over in history.stalls[process].stalls)


def late_grants(history: History) -> Iterator[str]:
    """In the healed system everybody gets everything, in time."""
    for attempt in history.attempts:
        if attempt.must and not (
            attempt.outcome == "granted" and attempt.ended_at - attempt.called_at <= GRANT_S_MAX
        ):
            yield (
                f"{attempt.ended_at:.6f} NOT GRANTED {attempt.name}: {attempt.process} asked at "
                f"{attempt.called_at:.6f} and had {attempt.outcome or 'no answer'}"
            )


def sent_after_the_end(history: History) -> Iterator[str]:
    """No grant and no renewal behind a delete of the same token, nor on a connection made after its end;
    none past the deadline.
    """
    ends: dict[bytes, float] = {}
    untils: dict[bytes, list[tuple[float, float]]] = {}
    granted: dict[bytes, float] = {}
    for tenure in history.tenures:
        ends[tenure.token] = tenure.released_at
        untils[tenure.token] = tenure.true_deadlines
        granted[tenure.token] = tenure.granted_at
    revoked: set[tuple[int, bytes]] = set()
    first_wire: dict[tuple[str, bytes], int] = {}
    for command in history.commands:
        if command.verb == "revoke":
            revoked.add((command.wire, command.token))
        elif command.verb in ("grant", "renew"):
            token = command.token
            opened_at = history.wires[command.wire].opened_at
            why = ""
            first = first_wire.setdefault((command.server, token), command.wire)
            if first != command.wire and command.at < granted.get(token, math.inf):
                why = "again, on another connection"
            elif (command.wire, token) in revoked:
                why = "behind its delete"
            elif opened_at > ends.get(token, math.inf):
                why = f"on a connection made after its release at {ends[token]:.6f}"
            elif command.at > _deadline_at(untils.get(token, ()), command.at) + 1e-3:
                why = "past its validity"
            if why and not _held_up(
                history, command.process, command.at - 1e-3, command.at + EARLY_S
            ):
                yield (
                    f"{command.at:.6f} SENT {command.process} sends a {command.verb} of {token[:8]!r} "
                    f"to {command.server} {why}"
                )


def _deadline_at(deadlines: Iterable[tuple[float, float]], at: float) -> float:
    """The deadline known at that time, infinite before the first."""
    known = math.inf
    for noticed_at, until in deadlines:
        if noticed_at < at:
            known = until
    return known


def foreign_keys_removed(history: History) -> Iterator[str]:
    """A delete takes its own token's key only."""
    for removed in history.removed:
        if removed.token != removed.wanted:
            what = f"{removed.token[:8]!r} on {removed.server}"
            yield f"{removed.at:.6f} FOREIGN {removed.by} removed {what}"
