"""What all documents share: unknown fields are refused, values do not change, faults are named."""

import hashlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NoReturn, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, ValidationError
from pydantic_core.core_schema import custom_error_schema

from pace.errors import PaceError
from pace.gc_pause import paused_gc
from pace.gzipped import GZIP_MAGIC, GzipFault, GzipTooLarge, gunzipped

MOST_FAULTS = 20
MOST_SHOWN = 200
# A small file that is gzipped must not fill the memory. A file that is not may have any size.
MOST_UNPACKED_BYTES = 2 * 2**30
# So many unknown fields are no misspellings.
ANOTHER_KIND = 3
TOO_DEEP = "its lists and objects are nested too deep: give another file"
UTF8_MARK = b"\xef\xbb\xbf"  # spreadsheets and PowerShell put it before a text in UTF-8
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")
IS_UTF16 = "this is a text in UTF-16: save it in UTF-8"
LIMIT = 10**18
"""Numbers of documents that have no limits of their own are smaller, and larger than its negative."""

LONGEST = 10**15
"""Whole numbers in errors have all their digits if they are smaller than this."""
_LIMITS = {"ge": "of at least", "gt": "above", "le": "at most", "lt": "below"}
# What is expected where a value has another type, by the beginning of pydantic's name of the fault.
_TYPES = {
    "int_": "a whole number",
    "float_": "a number",
    "bool_": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "an object",
    "model_": "an object",
    "datetime_": "a date and a time, for example 2026-01-31T12:00:00Z",
}

Bytes = Annotated[int, Field(ge=0, lt=2**63)]
Index = Annotated[int, Field(ge=0)]
Kind = TypeVar("Kind", bound="Document")
Value = TypeVar("Value")


def limit_numbers(schema: Any, document: type) -> None:
    """Limit the numbers of a model that have no limits of their own; models inside it limit theirs.

    An error about a number names all its limits: pydantic's own names one, whatever is wrong.
    """
    if isinstance(schema, dict):
        if schema.get("type") == "custom-error":
            return  # done before
        if schema.get("type") == "model" and schema["cls"] is not document:
            return
        if schema.get("type") in ("int", "float"):
            number = dict(schema)
            number.update({} if schema.keys() & {"lt", "le"} else {"lt": LIMIT})
            number.update({} if schema.keys() & {"gt", "ge"} else {"gt": -LIMIT})
            message = _expected(number, "a whole number" if number["type"] == "int" else "a number")
            schema.clear()
            schema.update(custom_error_schema(number, "number", custom_error_message=message))
            return
    if isinstance(schema, dict | list | tuple):
        for part in schema.values() if isinstance(schema, dict) else schema:
            limit_numbers(part, document)


def _expected(limits: Mapping[str, Any], what: str) -> str:
    """Return in words which numbers are expected, from limits as pydantic has them."""
    lower = max(limits.keys() & {"ge", "gt"}, key=lambda name: (limits[name], name == "gt"), default="")
    upper = min(limits.keys() & {"le", "lt"}, key=lambda name: (limits[name], name == "le"), default="")
    if (lower, upper) == ("ge", "le"):
        return f"expected {what} from {_number(limits['ge'])} to {_number(limits['le'])}"
    words = [f"{_LIMITS[name]} {_number(limits[name])}" for name in (lower, upper) if name]
    return f"expected {what} {' and '.join(words)}"


def _number(value: float) -> str:
    shown = f"{value:,}" if isinstance(value, int) and abs(value) < LONGEST else f"{value:g}"
    return re.sub(r"e([+-])0*", lambda sign: f"e{sign[1].strip('+')}", shown)


class Document(BaseModel):
    """Base of all documents: unknown fields are refused, values do not change.

    Attributes
    ----------
    refused_as
        Error that is raised for invalid fields; None for pydantic's own.
    limits_numbers
        Whether each number has a limit; see ``ComputedDocument``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)
    refused_as: ClassVar[type[PaceError] | None] = None
    limits_numbers: ClassVar[bool] = True

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> Any:
        """Return what the fields take, each number within its limits."""
        schema = handler(source)
        if cls.limits_numbers:
            limit_numbers(schema, cls)
        return schema

    if not TYPE_CHECKING:  # type checkers know the fields from their annotations

        def __init__(self, *positional: Any, **fields: Any) -> None:
            error = type(self).refused_as
            if error is None:
                super().__init__(*positional, **fields)
                return
            if positional:
                raise error(f"{type(self).__name__} takes fields by name (got {_short(positional[0])})")
            try:
                super().__init__(**fields)
            except ValidationError as fault:
                raise error(explain(fault)) from None

        # pydantic calls this for documents built by hand, and not for those inside parsed documents.
        __init__.__pydantic_base_init__ = True


class ComputedDocument(Document):
    """Base of what is only written: numbers that follow from those of documents have no limits."""

    limits_numbers = False


class JsonDocument(Document):
    """Base of documents that go into files; those that are equal have the same bytes."""

    def to_json(self) -> bytes:
        """Serialize; equal documents give the same bytes."""
        return self.model_dump_json().encode() + b"\n"

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of `to_json()`; 64 hexadecimal digits."""
        return hashlib.sha256(self.to_json()).hexdigest()


def repeated(names: Iterable[Value]) -> Value | None:
    """Return the first name or number that is there for the second time; None where all differ."""
    seen: set[Value] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def refuse_other(value: object, kind: type, error: type[PaceError]) -> None:
    """Raise an error of ours unless a value is of this kind."""
    if not isinstance(value, kind):
        article = "an" if kind.__name__[0] in "AEIOU" else "a"
        raise error(f"{article} {kind.__name__} is needed (got {_short(value)})")


def parse(kind: type[Kind], document: bytes | str) -> Kind:
    """Read a document from JSON; raises its ``refused_as`` with a line for each fault."""
    refused_as = kind.refused_as
    assert refused_as is not None
    try:
        with paused_gc():
            return kind.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise refused_as(faults(kind, document, error)) from None


_JSON_STARTS = ("{", "[", b"{", b"[")


def faults(kind: type[Document], document: bytes | str, error: ValidationError) -> str:
    """Return one line for each fault of a JSON document, or one line if it is of another kind."""
    parsed, is_json = None, True
    try:
        parsed = json.loads(document)
    except (ValueError, RecursionError, TypeError):
        is_json = False
    if isinstance(document, bytes | str) and not document.strip():
        return "the document is empty: expected JSON"
    if not is_json and isinstance(document, bytes | str) and document.strip()[:1] not in _JSON_STARTS:
        return "this is not JSON: give a document of PACE (`pace import` makes one of a trace or a table)"
    return _another_kind(kind, parsed) or explain(error, parsed)


def _another_kind(kind: type[Document], parsed: object) -> str | None:
    """Return in one line that a document is of another kind, where its fields show this."""
    if not isinstance(parsed, dict):
        return None
    needed = [name for name, field in kind.model_fields.items() if field.is_required()]
    missing = [name for name in needed if name not in parsed]
    unknown = [name for name in parsed if name not in kind.model_fields]
    if "problem_sha256" in unknown:
        return "this is a plan: give the document for which it was made"
    if "profile_sha256" in unknown:
        return "this is a schedule: give the profile or the graph for which it was made"
    if "traceEvents" in unknown:
        return "this is a trace: make a profile of it with `pace import`, or use `pace headroom`"
    if {"nodes", "wires"} <= set(unknown):
        return "this is a graph of collectives: give it to `pace optimize`, `simulate` or `what-if`"
    if {"ops", "gradients", "allreduce"} <= set(unknown):
        return "this is a profile of a training job"
    if len(parsed) != 1 and len(needed) > 1 and missing == needed:
        return f"this is another kind of document: it has none of {', '.join(needed)}"
    if len(unknown) < ANOTHER_KIND:
        return None
    names = ", ".join(_short(name) for name in unknown[:MOST_FAULTS])
    lacking = f"it has no {', '.join(missing)}, and " if missing else ""
    return f"this is another kind of document: {lacking}its fields {names} are unknown"


def load(parse_it: Callable[[bytes], Kind], path: str | Path, error: type[PaceError]) -> Kind:
    """Read a document from a JSON file by its parser; an error of ours names the file. Raises OSError."""
    document = read_file(path, error)
    try:
        return parse_it(document)
    except error as fault:
        raise error(f"{path}: {fault}") from None


def read_file(path: str | Path, error: type[PaceError]) -> bytes:
    """Return a text in UTF-8 from a file, gzipped or not, without a byte-order mark.

    Raises OSError, and an error of ours for what is no path or no such text.
    """
    if not isinstance(path, str | Path):
        raise error(f"the path of a file is needed (got {_short(path)})")
    content = Path(path).read_bytes()
    if content.startswith(GZIP_MAGIC):
        try:
            content = gunzipped(content, MOST_UNPACKED_BYTES)
        except GzipTooLarge as fault:
            raise error(f"{path}: the file is {fault}; if it is what you want, unpack it first") from None
        except GzipFault as fault:
            raise error(f"{path}: {fault}") from None
    if content.startswith(UTF16_MARKS):
        raise error(f"{path}: {IS_UTF16}")
    return content.removeprefix(UTF8_MARK)


class Faults(Protocol):
    """An error that lists faults: pydantic's, or FastAPI's for a request."""

    def errors(self) -> Any:
        """Return the faults as pydantic describes them."""


def explain(error: Faults, document: Any = None) -> str:
    """Return one line for each fault that a validator found: its place, what is wrong, and the value.

    Parameters
    ----------
    document
        What was validated, as parsed from JSON. With it, items of lists are called by their names instead
        of their numbers.
    """
    found = error.errors()
    places = [tuple(fault["loc"]) for fault in found]
    told = [
        fault
        for fault, place in zip(found, places, strict=True)
        # A list whose items are at fault counts as too short, too.
        if fault["type"] != "too_short" or not any(each[: len(place)] == place != each for each in places)
    ]
    return "\n".join(_explain_one(document, fault) for fault in told[:MOST_FAULTS])


def words_of(fault: Any) -> str:
    """Return what is wrong with a value, from one of pydantic's faults."""
    message: str = fault["msg"].removeprefix("Value error, ")
    kind, context = fault["type"], fault.get("ctx", {})
    if kind == "too_short":
        return f"give at least {context['min_length']} item{'s' * (context['min_length'] != 1)}"
    if kind == "too_long":
        return f"give at most {context['max_length']} item{'s' * (context['max_length'] != 1)}"
    if kind == "json_invalid" and "recursion limit" in message:
        return TOO_DEEP
    if context.keys() & _LIMITS.keys():
        return _expected(context, "a number")
    if kind == "literal_error":
        return f"expected {context['expected']}"
    if kind == "union_tag_not_found":
        return f"it has no {context['discriminator']}"
    if kind == "union_tag_invalid":
        return f"{context['discriminator']}: expected one of {context['expected_tags']}"
    return next((f"expected {what}" for name, what in _TYPES.items() if kind.startswith(name)), message)


def _explain_one(document: Any, fault: Any) -> str:
    message = words_of(fault)
    place: list[str] = []
    current = document
    for part in fault["loc"]:
        if isinstance(current, dict) and part not in current and part == current.get("kind"):
            continue  # pydantic adds the discriminator's value to the location
        current = _step(current, part)
        if isinstance(part, int) and isinstance(current, dict) and isinstance(current.get("name"), str):
            place[-1:] = [f'{place[-1].removesuffix("s")} "{current["name"]}"']
        else:
            place.append(str(part))
    value = fault.get("input")
    told = str(value).lower() if isinstance(value, bool) else _short(value)  # as JSON has it
    shown = f" (got {told})" if place and isinstance(value, int | float | str) else ""
    if shown and len(place) > 1 and isinstance(fault["loc"][-1], int):
        place.pop()  # the value shows which item it is
    return f"{': '.join(place)}: {message}{shown}" if place else message


def _short(value: object) -> str:
    # A whole request may be one string: what is shown of it is enough to find it.
    shown = repr(value)
    return shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]}..."


def _step(current: Any, part: int | str) -> Any:
    try:
        return current[part]
    except (KeyError, IndexError, TypeError):
        return None


def _refuse(*_arguments: object, **_named: object) -> NoReturn:
    raise TypeError("documents do not change: make a copy, or a new document with replace()")


class FrozenDict(dict[str, Any]):
    """A dict that refuses to change; equal to a plain one of the same items."""

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type, tuple[dict[str, Any]]]:
        return type(self), (dict(self),)


class FrozenList(list[Any]):
    """A list that refuses to change; equal to a plain one of the same items."""

    __setitem__ = __delitem__ = __iadd__ = __imul__ = append = clear = extend = insert = _refuse
    pop = remove = reverse = sort = _refuse

    def __reduce__(self) -> tuple[type, tuple[list[Any]]]:
        return type(self), (list(self),)


def frozen(value: Any) -> Any:
    """Return a value of JSON whose dicts and lists, at every depth, refuse to change.

    Raises
    ------
    ValueError
        For NaN and infinite numbers, which JSON does not have.
    """
    if isinstance(value, dict):
        return FrozenDict({name: frozen(item) for name, item in value.items()})
    if isinstance(value, list):
        return FrozenList(frozen(item) for item in value)
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} cannot be written as a JSON number")
    return value
