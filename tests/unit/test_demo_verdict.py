"""The demo's judgement: it finds every overlap there is, and none where there is none."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from aioredlock2._demo.history import Ending, History, Section
from aioredlock2._demo.record import Ended, Entered, Left, Recorder, Stopped, read_all
from aioredlock2._demo.settings import Settings
from aioredlock2._demo.verdict import Gap, Overlap, gaps, judge, overlaps


def section(start: float, end: float, worker: int = 1) -> Section:
    return Section(worker=worker, pid=100 + worker, start=start, end=end)


def killed(start: float, killed_at: float, end: float) -> Section:
    return Section(
        worker=9, pid=109, start=start, end=end, ending=Ending.KILLED, killed_at=killed_at
    )


def test_sections_one_after_the_other_do_not_overlap() -> None:
    assert not overlaps([section(1, 2), section(2, 3), section(3, 3), section(4, 5)])


def test_two_sections_at_once_are_found_with_the_time_both_went_on() -> None:
    first, second = section(1, 2.5, 1), section(2, 4, 2)
    found = overlaps([second, section(0, 1, 3), first])
    assert [Overlap(first, second)] == found
    assert found[0].seconds == 0.5


def test_a_section_inside_another_overlaps_by_its_whole_length() -> None:
    assert [0.25] == [found.seconds for found in overlaps([section(1, 5), section(2, 2.25)])]


def test_one_long_section_is_found_to_overlap_all_that_start_in_it() -> None:
    """Also those that don't overlap their direct predecessor."""
    long = section(0, 10)
    others = [section(start, start + 1, 2) for start in (1, 4, 7, 9.5)]
    assert [Overlap(long, other) for other in others] == overlaps([long, *others, section(11, 12)])


def test_equal_sections_overlap_and_empty_ones_do_only_strictly_inside() -> None:
    assert len(overlaps([section(1, 2), section(1, 2)])) == 1
    assert not overlaps([section(1, 1), section(1, 2), section(2, 2)])
    assert len(overlaps([section(1, 2), section(1.5, 1.5)])) == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 6)), max_size=12))
def test_there_are_overlaps_exactly_if_some_pair_overlaps(spans: list[tuple[int, int]]) -> None:
    """Against the definition, pair by pair."""
    sections = [section(start, start + length) for start, length in spans]
    pairs = [
        (one, other)
        for one, other in combinations(sorted(sections, key=lambda s: (s.start, s.end)), 2)
        if other.start < one.end
    ]
    assert {other.start for _, other in pairs} == {o.second.start for o in overlaps(sections)}


def test_a_gap_goes_from_the_kill_to_the_next_section() -> None:
    dead = killed(1.0, 1.5, 1.6)
    following = section(2.5, 3.0)
    found = gaps([following, section(0.0, 0.5), dead, section(4.0, 5.0)])
    assert [Gap(dead, following)] == found
    assert found[0].seconds == 1.0


def test_nobody_after_the_kill_is_a_gap_that_was_not_measured() -> None:
    found = gaps([section(0.0, 0.5), killed(1.0, 1.5, 1.6)])
    assert [None] == [gap.seconds for gap in found]


def test_a_gap_is_never_negative() -> None:
    assert [0.0] == [gap.seconds for gap in gaps([killed(1.0, 1.5, 1.6), section(1.2, 1.3)])]


def _history(path: Path, *, overlap: bool) -> History:
    """A record on disk as the demo's processes write it, read back."""
    late = 0.7 if overlap else 0.0
    with Recorder(path) as recorder:
        recorder.write(Entered(at=10.0, worker=1, pid=21, waited=0.1, valid_until=11.0))
        recorder.write(Left(at=10.5, worker=1, pid=21, valid_until=11.0, is_lost=False))
        recorder.write(Entered(at=10.6, worker=2, pid=22, waited=0.6, valid_until=11.6))
        recorder.write(Ended(at=11.01, worker=2, pid=22, killed_at=11.0))
        recorder.write(Entered(at=11.6 - late, worker=3, pid=23, waited=1.4, valid_until=12.6))
        recorder.write(Left(at=11.7, worker=3, pid=23, valid_until=12.6, is_lost=False))
        recorder.write(Stopped(at=12.0, worker=1, pid=21, waited=1.5))
        recorder.write(Ended(at=12.0, worker=1, pid=21, killed_at=None))
    history = History()
    for event in read_all(path):
        history.feed(event)
    return history


def test_a_clean_record_is_good(tmp_path: Path) -> None:
    verdict = judge(_history(tmp_path / "record", overlap=False), until=13.0, workers=4)
    assert verdict.is_good
    assert verdict.overlaps == ()
    assert verdict.sections == 3
    assert verdict.by_worker == {1: 1, 2: 1, 3: 1, 4: 0}
    assert verdict.longest_wait == 1.5
    assert verdict.longest_gap is not None
    assert round(verdict.longest_gap, 6) == 0.6
    assert (verdict.lost, verdict.overruns, verdict.deaths) == (0, (), 0)


def test_a_record_with_an_overlap_is_not(tmp_path: Path) -> None:
    verdict = judge(_history(tmp_path / "record", overlap=True), until=13.0, workers=4)
    assert not verdict.is_good
    (found,) = verdict.overlaps
    assert (found.first.worker, found.second.worker) == (2, 3)
    assert round(found.seconds, 6) == 0.11


def test_nothing_done_is_not_good() -> None:
    verdict = judge(History(), until=1.0, workers=2)
    assert not verdict.is_good
    assert verdict.longest_gap is None
    assert verdict.longest_wait == 0.0


def test_a_worker_that_died_is_not_good() -> None:
    history = History()
    history.feed(Entered(at=1.0, worker=1, pid=5, waited=0.0, valid_until=2.0))
    history.feed(Ended(at=1.5, worker=1, pid=5, killed_at=None))
    assert not judge(history, until=2.0, workers=1).is_good


def test_losses_and_overruns_are_told_apart() -> None:
    """Being told of a loss is what the lock promises; a pause past the validity is nobody's."""
    history = History()
    for pid, is_lost in ((5, True), (6, False)):
        history.feed(Entered(at=pid, worker=1, pid=pid, waited=0.0, valid_until=pid + 0.5))
        history.feed(Left(at=pid + 0.6, worker=1, pid=pid, valid_until=pid + 0.5, is_lost=is_lost))
    verdict = judge(history, until=9.0, workers=1)
    assert verdict.lost == 1
    assert [6] == [section.pid for section in verdict.overruns]
    assert verdict.is_good


def test_default_settings_are_within_their_limits() -> None:
    assert Settings() == Settings(seconds=20, workers=4, nodes=5, ttl=1)
