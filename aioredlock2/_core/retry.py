"""How long to pause between the rounds of one attempt.

Rivals who retry in step split the votes for ever, so each pause is drawn afresh ("full jitter", AWS
Architecture Blog, "Exponential Backoff And Jitter"), with a floor that lets whoever is ahead finish
its round: a pause of nearly nothing would only get in its way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aioredlock2._core.terms import number, seconds, wrong_value

if TYPE_CHECKING:
    import random  # the type only: the generator itself is handed in

__all__ = ["RetryPolicy"]

ROUNDS_TO_SIT_OUT = 2
"""A pause is at least this many times as long as the round before it took: rivals are as far away."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Pauses between rounds while somebody else holds the lock or too few nodes answer.

    The n-th pause (n from 0) is drawn between `floor` and min(`cap`, `floor` * `growth` ** (n + 1)).
    How long to go on is not decided here: that is the lock's `wait`.
    """

    floor: float = 0.01
    """Shortest pause in seconds, more than 0."""
    cap: float = 0.1
    """Longest pause in seconds, at least `floor`."""
    growth: float = 2.0
    """Factor by which the upper end grows from pause to pause, at least 1."""
    jitter: float = 1.0
    """Share of the span that is drawn at random: 1 is full jitter, 0 always takes the upper end."""

    def __post_init__(self) -> None:
        # A timedelta is as good as seconds everywhere: it is kept as seconds.
        object.__setattr__(self, "floor", seconds("floor", self.floor))
        object.__setattr__(self, "cap", seconds("cap", self.cap))
        if self.cap < self.floor:
            raise wrong_value("cap", self.cap, f"at least floor={self.floor!r}")
        if not 1 <= number("growth", self.growth) < math.inf:
            raise wrong_value("growth", self.growth, "1 or more, and finite")
        if not 0 <= number("jitter", self.jitter) <= 1:
            raise wrong_value("jitter", self.jitter, "from 0 to 1")

    def pause(self, n: int, round_took: float, rng: random.Random) -> float:
        """Seconds to pause after failed round `n` (from 0), which took `round_took` seconds."""
        # The exponent is bounded: growth ** n overflows a float long before anybody stops waiting.
        try:
            top = min(self.cap, self.floor * self.growth ** min(n + 1, 64))
        except OverflowError:  # a growth that is large itself
            top = self.cap
        drawn = top - self.jitter * rng.random() * (top - self.floor)
        return max(drawn, ROUNDS_TO_SIT_OUT * round_took)
