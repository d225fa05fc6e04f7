"""What the user asked for, checked."""

from __future__ import annotations

import math
from dataclasses import dataclass

__all__ = ["LIMITS", "RESOURCE", "Settings"]

RESOURCE = "invoice:42"

LIMITS = {"seconds": (1.0, 3_600.0), "workers": (1, 32), "nodes": (1, 15), "ttl": (0.5, 2.0)}
"""Least and most of each. The ttl is short so that one can wait for a restart guard's end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Size and length of the demo. Raises ValueError if a value is out of its limits."""

    seconds: float = 20.0
    """How long the workers contend, from the moment the nodes vote."""
    workers: int = 4
    nodes: int = 5
    ttl: float = 1.0

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not (math.isfinite(value) and least <= value <= most):
                raise ValueError(f"{name} must be from {least:g} to {most:g}, not {value:g}")
