"""Some seeds, replays, broken assumptions, planted bugs; `nox -s simulate` runs as many as wanted."""

from __future__ import annotations

import pytest

from tests.simulation.checks import window_end
from tests.simulation.mutations import MUTATIONS
from tests.simulation.options import BREAKS, FAULTS, draw
from tests.simulation.run import hunt, main, replay_command, try_seed
from tests.simulation.simulation import simulate

SEEDS = range(1000, 1012)
UNGUARDED_SEEDS = (184, 272)
FOUND_WITHIN = 8
QUICK = (
    "quorum one too small",
    "drift left out",
    "no clean-up after a cancellation",
    "loss only by vote",
    "extension without a ttl",
)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_seed_shows_no_violation(seed: int) -> None:
    outcome = try_seed(seed)
    assert not outcome.violations, f"replay: {replay_command(seed)}"
    assert outcome.leases
    assert outcome.commands


def test_a_seed_is_the_same_each_time() -> None:
    first, second = simulate(draw(3, 20.0)), simulate(draw(3, 20.0))
    assert first.digest == second.digest
    assert first.history.faults == second.history.faults
    assert simulate(draw(4, 20.0)).digest != first.digest


def test_options_come_from_the_seed_alone_and_leave_most_faults_off() -> None:
    drawn = [draw(seed) for seed in range(200)]
    assert drawn == [draw(seed) for seed in range(200)]
    for kind in FAULTS:
        share = sum(kind in options.faults for options in drawn) / len(drawn)
        assert 0.25 < share < 0.55, kind
    assert {kind for options in drawn for kind in options.broken} == set(BREAKS)
    assert sum(not options.broken for options in drawn) > 100


@pytest.mark.parametrize("seed", UNGUARDED_SEEDS)
def test_h07_without_the_guard_amnesia_lets_leases_overlap_and_fences_order_them(seed: int) -> None:
    result = simulate(draw(seed))
    assert "unguarded" in result.options.broken
    assert not result.verdict.violations, f"replay: {replay_command(seed)}"
    assert result.verdict.explained
    assert all("forgets, unguarded" in line for line in result.verdict.explained)
    history = result.history
    ordered = 0
    for first in history.tenures:
        for second in history.tenures:
            if (
                first.name == second.name
                and first.granted_at < second.granted_at < window_end(first, history)
                and first.fence is not None
                and second.fence is not None
            ):
                assert first.fence < second.fence
                ordered += 1
    assert ordered


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_planted_bug_can_be_planted_and_taken_out(name: str) -> None:
    codes = [edit.current for edit in MUTATIONS[name].edits]
    with MUTATIONS[name].planted():
        assert all(
            was is not edit.current for was, edit in zip(codes, MUTATIONS[name].edits, strict=True)
        )
    assert codes == [edit.current for edit in MUTATIONS[name].edits]


@pytest.mark.parametrize("name", QUICK)
def test_a_planted_bug_is_found(name: str) -> None:
    assert hunt(MUTATIONS[name], range(FOUND_WITHIN)) is not None


def test_the_command_line_tells_seeds_and_violations(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "2", "--first", "1000", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "2 seeds, 0 violations"


def test_the_command_line_tells_how_to_replay(capsys: pytest.CaptureFixture[str]) -> None:
    with MUTATIONS["quorum one too small"].planted():
        assert main(["--seeds", "1", "--workers", "1"]) == 1
    out = capsys.readouterr().out
    assert "replay: nox -s simulate -- --seed 0" in out
    assert out.splitlines()[-1] == "1 seeds, 1 violations"


def test_a_replayed_seed_tells_its_story(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "1000", "--seconds", "20"]) == 0
    out = capsys.readouterr().out
    for said in ("ttl = ", "FAULT", "p1 has name0 until", "all is healed", "1 seeds, 0 violations"):
        assert said in out
