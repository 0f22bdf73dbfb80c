"""What is closed at the end of a ``with`` block."""

from typing import Self


class Closing:
    """A context manager whose end is ``close``."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_raised: object) -> None:
        self.close()

    def close(self) -> None:
        """Give back what this holds."""
        raise NotImplementedError
