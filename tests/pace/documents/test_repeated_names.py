"""Names that must differ: the first repetition is found, and looking for it takes one pass."""

from pace.documents.base import repeated

# So many that comparing each with every other would outlast the suite's patience.
MANY = 100_000


def test_the_first_repetition_is_named() -> None:
    """That which is there for the second time first, not what was there first."""
    assert repeated("abc") is None
    assert repeated("abccba") == "c"


def test_many_names_are_looked_through_once() -> None:
    """Where nothing is repeated, and where only the last is."""
    names = [f"host{number}" for number in range(MANY)]
    assert repeated(names) is None
    assert repeated([*names, "host0"]) == "host0"
