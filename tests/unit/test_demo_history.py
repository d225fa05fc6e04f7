"""From the demo's events to sections: each has the end that is right for how it ended."""

from __future__ import annotations

import pytest

from aioredlock2._demo.history import Ending, History, Section
from aioredlock2._demo.record import Ended, Entered, Event, Left, Stopped


def entered(at: float, pid: int = 7, *, waited: float = 0.0) -> Entered:
    return Entered(at=at, worker=pid % 10, pid=pid, waited=waited, valid_until=at + 1)


def left(at: float, pid: int = 7, *, valid_until: float = 99.0, is_lost: bool = False) -> Left:
    return Left(at=at, worker=pid % 10, pid=pid, valid_until=valid_until, is_lost=is_lost)


def ended(at: float, pid: int = 7, *, killed_at: float | None = None) -> Ended:
    return Ended(at=at, worker=pid % 10, pid=pid, killed_at=killed_at)


def history_of(*events: Event) -> History:
    history = History()
    for event in events:
        history.feed(event)
    return history


def section(start: float, end: float, ending: Ending, **more: float) -> Section:
    return Section(worker=7, pid=7, start=start, end=end, ending=ending, **more)


def test_a_section_goes_from_entering_to_leaving() -> None:
    history = history_of(entered(1.0), left(1.5), entered(2.0), left(2.25))
    assert [section(1.0, 1.5, Ending.LEFT), section(2.0, 2.25, Ending.LEFT)] == history.sections


def test_a_section_ends_with_the_validity_at_the_latest_and_tells_the_overrun() -> None:
    history = history_of(entered(1.0), left(2.5, valid_until=2.0))
    assert [section(1.0, 2.0, Ending.LEFT, overrun=0.5)] == history.sections


def test_a_validity_that_was_over_at_the_start_makes_an_empty_section() -> None:
    history = history_of(entered(1.0), left(2.5, valid_until=0.5))
    assert [section(1.0, 1.0, Ending.LEFT, overrun=1.5)] == history.sections


def test_a_lost_lease_ends_the_section_when_the_worker_is_told() -> None:
    history = history_of(entered(1.0), left(1.5, is_lost=True))
    assert [section(1.0, 1.5, Ending.LOST)] == history.sections


def test_a_lease_lost_by_the_clock_ends_the_section_at_its_validity() -> None:
    history = history_of(entered(1.0), left(2.5, valid_until=2.0, is_lost=True))
    assert [section(1.0, 2.0, Ending.LOST, overrun=0.5)] == history.sections


def test_a_killed_worker_is_inside_until_it_is_known_to_be_gone() -> None:
    history = history_of(entered(1.0), ended(1.5, killed_at=1.4))
    assert [section(1.0, 1.5, Ending.KILLED, killed_at=1.4)] == history.sections
    assert history.deaths == 0


def test_a_worker_killed_outside_leaves_no_section() -> None:
    history = history_of(entered(1.0), left(1.2), ended(1.5, killed_at=1.4))
    assert [section(1.0, 1.2, Ending.LEFT)] == history.sections


def test_a_worker_that_dies_by_itself_is_counted_and_its_section_ends() -> None:
    history = history_of(entered(1.0), ended(1.5))
    assert [section(1.0, 1.5, Ending.DIED)] == history.sections
    assert history.deaths == 1


def test_a_worker_that_was_stopped_has_not_died() -> None:
    stopped = Stopped(at=2.0, worker=7, pid=7, waited=0.0)
    assert history_of(stopped, ended(2.1)).deaths == 0


def test_a_process_id_used_again_starts_afresh() -> None:
    stopped = Stopped(at=2.0, worker=7, pid=7, waited=0.0)
    assert history_of(stopped, ended(2.1), ended(3.0)).deaths == 1


def test_waits_are_those_of_sections_and_of_workers_stopped_while_they_waited() -> None:
    history = history_of(
        entered(1.0, waited=0.5),
        left(1.1),
        Stopped(at=2.0, worker=7, pid=7, waited=0.9),
        Stopped(at=2.0, worker=8, pid=8, waited=0.0),
    )
    assert [0.5, 0.9] == history.waits


def test_the_holder_is_the_newest_that_has_not_left() -> None:
    history = history_of()
    assert history.holder is None
    history.feed(entered(1.0, 11))
    history.feed(entered(1.5, 12))
    assert history.holder == entered(1.5, 12)
    history.feed(left(1.6, 12))
    assert history.holder == entered(1.0, 11)
    history.feed(ended(1.7, 11, killed_at=1.6))
    assert history.holder is None


def test_open_sections_count_until_the_record_was_read() -> None:
    history = history_of(entered(2.0), entered(1.0, 17), left(1.5, 17))
    assert [
        Section(worker=7, pid=17, start=1.0, end=1.5),
        section(2.0, 3.0, Ending.OPEN),
    ] == history.all_sections(until=3.0)
    assert history.all_sections(until=1.0)[1] == section(2.0, 2.0, Ending.OPEN)


@pytest.mark.parametrize(
    "events",
    [
        [left(1.0)],
        [entered(1.0), entered(1.1)],
        [entered(1.0), left(0.5)],
        [entered(1.0), left(1.1), left(1.2)],
        [entered(1.0), left(1.1, 8)],
    ],
)
def test_what_no_process_can_do_is_refused(events: list[Event]) -> None:
    with pytest.raises(ValueError, match=r"entered twice|left without entering"):
        history_of(*events)
