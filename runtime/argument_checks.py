"""What values of arguments are refused with: errors that name the argument, its value and what is needed."""

import numbers

from pace.errors import InvalidOptions

# Three years: what clocks of all libraries below can still add to the time of day.
LONGEST_TIMEOUT_S = 1e8


def refusal(name: str, value: object, needed: str) -> InvalidOptions:
    """Return the error for the value of an argument."""
    return InvalidOptions(f"{name} is {value!r}; {needed} is needed")


def require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is not among a few words."""
    if not isinstance(value, str) or value not in allowed:
        words = [repr(word) for word in allowed]
        raise refusal(name, value, f"{', '.join(words[:-1])} or {words[-1]}")


def require_whole(name: str, value: object, *, least: int) -> None:
    """Refuse what is no whole number, or less than `least`."""
    if not is_number(value) or not isinstance(value, numbers.Integral) or value < least:
        raise refusal(name, value, f"a whole number of at least {least}")


def require_bool(name: str, value: object) -> None:
    """Refuse what is neither True nor False."""
    if not isinstance(value, bool):
        raise refusal(name, value, "True or False")


def require_text(name: str, value: object, *, secret: bool = False) -> None:
    """Refuse what is no text, or an empty one; secrets are never shown."""
    if not isinstance(value, str) or not value:
        raise refusal(name, type(value) if secret else value, "a text that is not empty")


def require_instance(name: str, value: object, kinds: type | tuple[type, ...], needed: str) -> None:
    """Refuse what is of none of these types."""
    if not isinstance(value, kinds):
        shown = (
            f"the class {value.__name__}" if isinstance(value, type) else f"of type {type(value).__name__}"
        )
        raise InvalidOptions(f"{name} is {shown}; {needed} is needed")


def is_number(value: object) -> bool:
    """Whether a value is a real number, and not a truth value."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_timeout(value: object) -> bool:
    """Whether a value is a number of seconds that can be waited for."""
    return isinstance(value, numbers.Real) and is_number(value) and 0 < float(value) <= LONGEST_TIMEOUT_S
