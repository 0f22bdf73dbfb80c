"""What is closed at the end of a ``with`` block."""

from types import TracebackType
from typing import Self


class Closing:
    """A context manager whose end is ``close``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give back what this holds."""
        raise NotImplementedError
