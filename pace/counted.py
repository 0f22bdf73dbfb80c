"""Numbers with their nouns, as messages have them."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 violation``, ``2 violations``."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{ending}"
