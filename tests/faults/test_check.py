"""The checker finds what is planted, and leaves a good history alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.faults.check import GAP_S_MAX, LATE_S_MAX, WAIT_S_MAX, Verdict, judge
from tests.faults.history import (
    Died,
    Ended,
    Event,
    Extended,
    Faulted,
    Forked,
    Granted,
    History,
    Keys,
    Refused,
    Rested,
    Stalled,
    Stray,
    Whole,
    read,
)


def lease(start: float, end: float, **facts: Any) -> list[Event]:
    """A lease of worker *pid*, valid for long enough unless said otherwise."""
    pid = facts.pop("pid", 1)
    number = facts.pop("lease", int(start * 1000))
    until = facts.pop("valid_until", end + 1)
    how = facts.pop("how", "released")
    away = facts.pop("away", 0)
    granted = Granted(
        at=start,
        worker=pid,
        pid=pid,
        lease=number,
        resource=facts.pop("resource", "x"),
        asked_at=facts.pop("asked_at", start - 0.01),
        valid_until=until,
        fence=facts.pop("fence", None),
        away=away,
    )
    assert not facts
    return [granted, Ended(at=end, pid=pid, lease=number, valid_until=until, how=how)]


def kinds(verdict: Verdict) -> list[str]:
    return [violation.kind for violation in verdict.violations]


def test_one_after_the_other_is_good() -> None:
    events = [
        *lease(1, 2, pid=1, fence=5),
        *lease(2, 3, pid=2, fence=6),
        *lease(2.5, 4, pid=1, fence=1, resource="y"),
    ]
    verdict = judge(events)
    assert [] == verdict.violations
    assert 3 == verdict.counts["acquired"]
    assert 3 == verdict.counts["released"]


def test_two_at_once_is_an_overlap() -> None:
    verdict = judge([*lease(1, 3, pid=1), *lease(2.999, 4, pid=2)])
    assert ["overlap"] == kinds(verdict)
    assert 1 == verdict.counts["overlaps"]


def test_the_order_of_lines_means_nothing() -> None:
    assert ["overlap"] == kinds(judge([*lease(2.999, 4, pid=2), *lease(1, 3, pid=1)]))


def test_nobody_holds_past_the_deadline() -> None:
    """A worker that was stopped may say so late, and the next one may come before that."""
    stopped = Stalled(at=5, pid=1, since=1.5)
    events = [*lease(1, 5, pid=1, valid_until=2, how="lost"), stopped, *lease(2, 3, pid=2)]
    assert [] == judge(events).violations


def test_the_deadline_moves_with_an_extension() -> None:
    granted, _ = lease(1, 2, lease=7, valid_until=1.5)
    extended = Extended(at=1.2, pid=1, lease=7, valid_until=2.5, by="watchdog")
    died = Died(at=2.2, pid=1, expected=True)
    for end, wrong in ((2.1, ["overlap"]), (2.3, [])):
        assert wrong == kinds(judge([granted, extended, died, *lease(end, 3, pid=2)]))


def test_the_dead_hold_nothing() -> None:
    granted, _ = lease(1, 2, valid_until=9)
    died = Died(at=2, pid=1, expected=True)
    assert [] == judge([granted, died, *lease(2, 3, pid=2)]).violations
    assert ["overlap"] == kinds(judge([granted, died, *lease(1.9, 3, pid=2)]))


def test_a_lease_that_never_ends_is_a_failure() -> None:
    assert ["unfinished"] == kinds(judge(lease(1, 2)[:1]))


@pytest.mark.parametrize("fence", [5, 4])
def test_a_fence_that_does_not_grow(fence: int) -> None:
    verdict = judge([*lease(1, 2, fence=5), *lease(3, 4, pid=2, fence=fence)])
    assert "fence inversion" in kinds(verdict)


def test_fences_go_on_from_chapter_to_chapter() -> None:
    events = lease(1, 2, fence=5)
    assert [] == judge(events, fences={"x": 4, "y": 9}).violations
    assert ["fence inversion"] == kinds(judge(events, fences={"x": 5}))


@pytest.mark.parametrize(("away", "forgets", "wrong"), [(2, True, 0), (1, True, 1), (2, False, 1)])
def test_a_lease_that_few_nodes_knew_may_be_forgotten(away: int, forgets: bool, wrong: int) -> None:
    emptied = Faulted(at=1.5, until=1.6, fault="emptied", target="node 1", forgets=forgets)
    events = [*lease(1, 3, away=away), *lease(2, 4, pid=2), emptied]
    assert wrong == len(judge(events).violations)


def test_beyond_the_assumptions_overlaps_are_counted() -> None:
    verdict = judge([*lease(1, 3, pid=1), *lease(2, 4, pid=2)], beyond=True)
    assert [] == verdict.violations
    assert 1 == verdict.counts["overlaps"]


def test_beyond_the_assumptions_fences_follow_what_was_before_the_asking() -> None:
    first = lease(1, 3, pid=1, fence=6)
    at_once = lease(2, 4, pid=2, asked_at=0.5, fence=5)
    afterwards = lease(2, 4, pid=2, asked_at=1.5, fence=5)
    assert [] == judge(first + at_once, beyond=True).violations
    assert ["fence inversion"] == kinds(judge(first + afterwards, beyond=True))


def test_a_late_loss() -> None:
    late = lease(1, 2 + LATE_S_MAX + 0.1, valid_until=2, how="lost")
    assert ["late loss"] == kinds(judge(late))
    excuse = Stalled(at=2.2, pid=1, since=1.5)
    assert [] == judge([*late, excuse]).violations
    of_another = Stalled(at=2.2, pid=2, since=1.5)
    assert ["late loss"] == kinds(judge([*late, of_another]))


def test_stalls_that_overlap_count_once() -> None:
    late = lease(1, 2 + LATE_S_MAX + 0.3, valid_until=2, how="lost")
    stalls: list[Event] = [Stalled(at=2.2, pid=1, since=2), Stalled(at=2.21, pid=1, since=2)]
    assert ["late loss"] == kinds(judge([*late, *stalls]))


def test_a_lease_is_not_taken_away() -> None:
    granted, _ = lease(1, 2, lease=7, valid_until=3)
    ended = Ended(
        at=2,
        pid=1,
        lease=7,
        valid_until=3,
        how="lost",
        why="too many nodes no longer have its key: 2 of 5 granted, 3 denied",
    )
    assert ["lease taken away"] == kinds(judge([granted, ended]))
    assert [] == judge([granted, ended], beyond=True).violations
    restarted = [
        Faulted(at=1.1, until=1.2, fault="restarted", target=f"node {n}", empties=True)
        for n in range(3)
    ]
    assert [] == judge([granted, ended, *restarted]).violations
    assert ["lease taken away"] == kinds(judge([granted, ended, *restarted[:2]]))


def test_a_free_name_that_nobody_gets() -> None:
    first, waits = lease(1, 2), lease(2 + GAP_S_MAX + 0.1, 30, pid=2, asked_at=1.5)
    verdict = judge(first + waits)
    assert ["long gap"] == kinds(verdict)
    assert GAP_S_MAX + 0.1 == pytest.approx(verdict.longest_gap)
    assert [] == judge(first + lease(14, 15, pid=2, asked_at=13)).violations


def test_a_call_that_overruns_its_wait() -> None:
    def refused(at: float) -> Event:
        return Refused(at=at, pid=1, resource="x", asked_at=1, wait=0.5, error="LockContended")

    assert [] == judge([refused(1.6)]).violations
    assert ["overran its wait"] == kinds(judge([refused(1.6 + WAIT_S_MAX)]))


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (Keys(at=1, node=0, keys={"redlock:x": 200}), "orphan key"),
        (Stray(at=1, pid=1, text="Task exception was never retrieved"), "stray error"),
        (Forked(at=1, pid=1, wrong="it is held"), "inherited by a fork"),
        (Died(at=1, pid=1, expected=False), "worker failed"),
        (Died(at=1, pid=1, expected=True, errors="ResourceWarning"), "worker failed"),
        (Faulted(at=1, until=2, fault="frozen", target="node 1", error="OSError"), "suite"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_what_must_never_be(event: Event, kind: str) -> None:
    assert [kind] == kinds(judge([event]))


def test_everybody_is_served_when_the_faults_are_over() -> None:
    def rested(pid: int) -> Event:
        return Rested(at=9, worker=pid, pid=pid, tasks=1, files=1, kilobytes=1)

    events = [*lease(1, 2, pid=1), Whole(at=3), *lease(4, 5, pid=2), rested(1), rested(2)]
    assert ["not healed"] == kinds(judge(events))
    assert [] == judge([*events, *lease(6, 7, pid=1)]).violations


def test_what_is_written_is_read(tmp_path: Path) -> None:
    events: list[Event] = [*lease(1, 2, fence=3), Keys(at=1, node=0, keys={"a": -1}), Whole(at=2)]
    path = tmp_path / "history"
    with History(path) as history:
        for event in events:
            history.write(event)
    assert events == list(read(path))
    with path.open("a") as file:
        file.write('{"event": "granted"}\n')
    with pytest.raises(ValueError, match="not a line"):
        list(read(path))
