"""The collector rests while it would only slow things down, and no longer."""

import gc
import json
import threading
import weakref

import pytest

from pace import parse_profile
from pace.errors import InvalidProfile
from pace.gc_pause import paused_gc
from tests.api.profiles import layered_profile


class _Cycle:
    def __init__(self) -> None:
        self.itself = self


def _left_alone() -> "weakref.ref[_Cycle]":
    """Make garbage that only the collector finds, and much after it."""
    found = weakref.ref(_Cycle())
    kept = [[number] for number in range(200_000)]
    assert len(kept) == 200_000
    return found


def test_it_rests_until_the_last_is_done() -> None:
    """Of two threads inside, the first to leave does not wake it, the last one does."""
    first_left, second_in = threading.Event(), threading.Event()

    def second() -> None:
        with paused_gc():
            second_in.set()
            first_left.wait(60)

    other = threading.Thread(target=second)
    with paused_gc():
        other.start()
        assert second_in.wait(60)
    assert _left_alone()() is not None
    first_left.set()
    other.join()
    assert gc.isenabled()
    assert _left_alone()() is None


def test_who_turned_it_off_finds_it_off() -> None:
    """A program without the collector stays without."""
    gc.disable()
    try:
        with paused_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_profiles_leave_it_on() -> None:
    """Valid or not."""
    parse_profile(json.dumps(layered_profile(3)))
    with pytest.raises(InvalidProfile):
        parse_profile("{")
    assert gc.isenabled()
