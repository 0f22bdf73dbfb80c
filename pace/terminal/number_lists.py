"""Lists of numbers on the command line: ``1,5,10``, ``1:25:1`` and, for whole numbers, ``1-8``."""

import math

from pace.errors import InvalidOptions

MOST_VALUES = 100_000
_NUMBERS = "expected numbers, for example 1,5,10 or 1:25:1 (from:to:step)"
_WHOLE_NUMBERS = "expected whole numbers, for example 1,2,4 or 1-8 or 1:9:2 (from:to:step)"


def read_numbers(option: str, text: str | None) -> tuple[float, ...]:
    """Read numbers separated by commas; ``from:to:step`` stands for a range. None gives no number.

    Raises
    ------
    InvalidOptions
        If the text has another form, a number is infinite or NaN, or a range has more than 100,000 values.
    """
    return () if text is None else _numbers(option, text, _NUMBERS)


def _numbers(option: str, text: str, expected: str) -> tuple[float, ...]:
    values: list[float] = []
    for part in text.split(","):
        pieces = part.strip().split(":")
        try:
            numbers = [float(piece) for piece in pieces]
        except ValueError:
            numbers = []
        if len(numbers) == 1 and math.isfinite(numbers[0]):
            values += numbers
        elif len(numbers) == 3 and numbers[2] > 0 and numbers[0] <= numbers[1] < math.inf:
            first, last, step = numbers
            count = (last - first) / step
            _refuse_too_many(option, part, count)
            values += [round(first + step * at, 12) for at in range(int(count + 1e-9) + 1)]
        else:
            raise InvalidOptions(f'{option} "{text}": {expected}')
    return tuple(values)


def read_whole_numbers(option: str, text: str | None) -> tuple[int, ...]:
    """Read whole numbers as ``read_numbers`` does; ``1-8`` stands for 1 to 8.

    Raises
    ------
    InvalidOptions
        As ``read_numbers``, and if a number is not whole.
    """
    values: list[int] = []
    for part in text.split(",") if text is not None else ():
        first, dash, last = part.strip().partition("-")
        if dash and first.isdecimal() and last.isdecimal() and int(first) <= int(last):
            _refuse_too_many(option, part, int(last) - int(first))
            values += range(int(first), int(last) + 1)
            continue
        numbers = _numbers(option, part, _WHOLE_NUMBERS)
        if not all(number.is_integer() for number in numbers):
            raise InvalidOptions(f'{option} "{text}": {_WHOLE_NUMBERS}')
        values += map(int, numbers)
    return tuple(values)


def _refuse_too_many(option: str, part: str, count: float) -> None:
    if not count < MOST_VALUES:
        raise InvalidOptions(f"{option} {part}: expected at most {MOST_VALUES:,} values")
