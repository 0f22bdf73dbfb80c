"""Python's cyclic garbage collector, which looks at every new object of a large document again and again."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_MANY = 100_000

_lock = threading.Lock()
_num_paused = 0
_was_enabled = False


@contextmanager
def paused_collector() -> Iterator[None]:
    """Let the collector rest: for work that makes many objects and no cycles.

    Reading a profile of 100,000 ops takes a third of the time. The last of the threads that are inside
    lets it go on, and counts what was made among the old objects: it would look at all of it at once.
    """
    global _num_paused, _was_enabled
    with _lock:
        if _num_paused == 0:
            _was_enabled = gc.isenabled()
            gc.disable()
        _num_paused += 1
    try:
        yield
    finally:
        with _lock:
            _num_paused -= 1
            if _num_paused == 0 and _was_enabled:
                # To ask whether somebody keeps objects apart takes a look at each of those.
                if gc.get_count()[0] > _MANY and not gc.get_freeze_count():
                    # Together they move all objects to the oldest generation, without a look at any.
                    gc.freeze()
                    gc.unfreeze()
                gc.enable()
