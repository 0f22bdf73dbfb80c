"""``pace servers serve`` in processes of its own, for tests that train with it or end it."""

import contextlib
from collections.abc import Iterator

from tests.runtime.programs import pace


@contextlib.contextmanager
def served(number: int, *options: str) -> Iterator[tuple[list[str], list[int]]]:
    """Where so many servers listen, and their process ids."""
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(pace("servers", "serve", "--bind", "127.0.0.1:0", *options))
            for _ in range(number)
        ]
        yield [each.said("listening on ") for each in processes], [each.process.pid for each in processes]
