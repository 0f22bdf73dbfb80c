"""Names for Horovod's collectives without a name, by which ranks find one another.

Horovod itself counts all that the process has started. While the runtime sends, ranks differ in that, and
would wait for one another forever.
"""

import functools
import inspect
import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from pace.runtime.gates.patches import HOROVOD_STARTS, patch

# By function and ranks: a rank may be in process sets that others are not in.
_numbers: defaultdict[tuple[Any, ...], Iterator[int]] = defaultdict(itertools.count)


def name_collectives() -> None:
    """Name collectives by their number among those of the same kind and ranks. Idempotent."""
    for place in HOROVOD_STARTS:
        patch(place, functools.partial(_naming, place.partition(":")[2]))


def number_anew() -> None:
    """Begin with the first number again: Horovod was initialized just now, maybe with other ranks."""
    _numbers.clear()


def _naming(kind: str, own: Any) -> Any:
    arguments = list(inspect.signature(own).parameters)
    of_name, of_set = arguments.index("name"), arguments.index("process_set")

    @functools.wraps(own)
    def start(*given: Any) -> Any:
        if given[of_name] is not None:
            return own(*given)
        number = next(_numbers[kind, *given[of_set].ranks])
        return own(*given[:of_name], f"pace.unnamed.{kind}.{number}", *given[of_name + 1 :])

    return start
