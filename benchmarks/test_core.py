"""Micro benchmarks of the hot path's parts, without a server: `pytest benchmarks --benchmark-enable`.

The unit is what one round needs: five nodes, a grant and its answers, a release and its answers.
"""

from __future__ import annotations

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from aioredlock2._core.ballot import Ballot, Rule, Verdict, grant_rule, renew_rule, revoke_rule
from aioredlock2._core.terms import LockTerms, resource_bytes
from aioredlock2._engine import Round
from aioredlock2._hold import Hold
from aioredlock2._node import Request, Verb
from aioredlock2._redis import dialect
from aioredlock2._redis.dialect import Form
from aioredlock2._redis.mux import Mux
from aioredlock2._schedule import Schedule
from aioredlock2._turns import Turn
from aioredlock2.outcomes import Vote

NODES = 5
KEY, TOKEN, TTL_MS = b"redlock:invoice:42", b"0123456789abcdef" * 2, 10_000
TERMS = LockTerms.of(10, drift_factor=0.01, node_timeout=None)
FORMS = (
    dialect.SET_NX,
    dialect.SET_IFEQ,
    dialect.DELEX,
    dialect.DELIFEQ,
    dialect.REVOKE_EVALSHA,
)
HELD_LEASES = 1000


@pytest.mark.parametrize(
    "rule", [grant_rule, renew_rule, revoke_rule], ids=["grant", "renew", "revoke"]
)
def test_ballot_of_five(benchmark: BenchmarkFixture, rule: Rule) -> None:
    """A ballot, and the votes of all nodes."""

    def count() -> Verdict:
        ballot = Ballot(NODES, rule)
        for index in range(NODES):
            ballot.cast(index, Vote.GRANTED)
        return ballot.verdict

    assert benchmark(count) is Verdict.WON


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_dialect_pack_for_five(benchmark: BenchmarkFixture, form: Form) -> None:
    """One request, packed once and shared by the nodes."""

    def pack() -> bytes:
        request = Request(Verb.GRANT, KEY, TOKEN, TTL_MS)
        for _ in range(NODES):
            data = dialect.pack(form, request)
        return data

    assert TOKEN in benchmark(pack)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_dialect_read(benchmark: BenchmarkFixture, form: Form) -> None:
    """What the usual reply means."""
    request = Request(Verb.GRANT, KEY, TOKEN, TTL_MS)
    answer = benchmark(dialect.read, form, request, form.yes)
    assert answer == (Vote.GRANTED, None)


@pytest.mark.parametrize("replies", [1, 100])
def test_mux_feed(benchmark: BenchmarkFixture, replies: int) -> None:
    """Requests expected, and their replies read in one chunk."""
    mux: Mux[int] = Mux()
    data = b"+OK\r\n" * replies

    def feed() -> int:
        for number in range(replies):
            mux.pending.append(number)
        mux.feed(data, lambda _slot, _reply: None)
        return mux.answered

    assert benchmark(feed) >= replies


def test_terms(benchmark: BenchmarkFixture) -> None:
    """A ttl that was not asked for before."""
    terms = benchmark(lambda: LockTerms.of(2.5, drift_factor=0.01, node_timeout=None))
    assert terms.ttl_ms == 2500


def test_resource_bytes(benchmark: BenchmarkFixture) -> None:
    assert benchmark(resource_bytes, "invoice:42") == b"invoice:42"


def _hold(number: int) -> Hold:
    won = Round(NODES, grant_rule, Request(Verb.GRANT, KEY, TOKEN, TTL_MS), number / 1000)
    return Hold(
        "invoice:42",
        won,
        TERMS,
        number / 1000 + TERMS.ttl - TERMS.drift,
        sent_to=31,
        turn=Turn(KEY),
        renew=True,
        max_hold=None,
    )


def test_schedule_of_a_short_lease(benchmark: BenchmarkFixture) -> None:
    """Put in and taken out again long before it is due, among others that stay."""
    schedule = Schedule()
    for number in range(HELD_LEASES):
        schedule.put(_hold(number), number / 1000 + TERMS.renew_every, 0.0)
    hold = _hold(0)

    def pass_through() -> None:
        schedule.put(hold, TERMS.renew_every, 0.0)
        schedule.remove(hold)

    benchmark(pass_through)
    assert hold.due_at is None


def test_schedule_of_a_thousand_leases(benchmark: BenchmarkFixture) -> None:
    """All put in, then all found due."""
    holds = [_hold(number) for number in range(HELD_LEASES)]

    def go_round() -> int:
        schedule = Schedule()
        for number, hold in enumerate(holds):
            schedule.put(hold, number / 1000 + TERMS.renew_every, 0.0)
        return sum(1 for _ in schedule.due(TERMS.ttl))

    assert benchmark(go_round) == HELD_LEASES
