"""Deletes that are owed: each once, none for ever, not too many at a time."""

from __future__ import annotations

from aioredlock2._node import Request, Verb
from aioredlock2._redis.debts import OWED_MAX, Debts

TTL_S = 10.0


def debt(number: int) -> Request:
    return Request(Verb.REVOKE, b"redlock:x", b"%032d" % number, int(TTL_S * 1000))


def owing(*numbers: int, now: float = 0.0) -> Debts:
    debts = Debts()
    for number in numbers:
        debts.owe(debt(number), now)
    return debts


def numbers_of(requests: list[Request]) -> list[int]:
    return [int(request.token) for request in requests]


def test_the_oldest_go_first_so_many_at_a_time() -> None:
    debts = owing(1, 2, 3)
    assert debts
    assert numbers_of(debts.due(0, 2)) == [1, 2]
    assert numbers_of(debts.due(0, 2)) == [3]
    assert not debts
    assert debts.due(0, 2) == []


def test_a_token_is_owed_once() -> None:
    assert numbers_of(owing(1, 2, 1).due(0, 9)) == [1, 2]


def test_a_delete_that_met_an_error_keeps_its_first_end() -> None:
    """Until then the key can live, however often the delete is tried."""
    debts, again = Debts(), debt(1)
    debts.owe(again, 0)
    assert debts.due(6, 9) == [again]
    debts.owe(again, 6)
    assert debts.due(TTL_S, 9) == []
    assert not debts


def test_what_has_expired_is_dropped_when_something_is_added() -> None:
    debts = owing(*range(5))
    debts.owe(debt(9), TTL_S)
    assert numbers_of(debts.due(0, 9)) == [9]


def test_what_has_expired_already_is_not_kept() -> None:
    debts, late = Debts(), debt(1)
    late.until = 5
    debts.owe(late, 6)
    assert not debts


def test_h25_there_is_a_bound_and_the_oldest_give_way() -> None:
    debts = owing(*range(OWED_MAX + 3))
    assert numbers_of(debts.due(0, 2)) == [3, 4]
    assert len(debts.due(0, OWED_MAX)) == OWED_MAX - 2
