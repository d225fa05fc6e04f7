"""What has to be stopped, whatever happens in between."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

__all__ = ["Stopping"]


class Stopping(ABC):
    """A context manager that stops at its end."""

    @abstractmethod
    def stop(self) -> None:
        """Let go of everything."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.stop()
