"""Documents that two readers may understand in two ways: a key twice in one object, names that look alike."""

import json
import unicodedata
from collections.abc import Iterable
from typing import Any

from pace.api.errors import InvalidRequest
from pace.documents.profile import Profile
from pace.errors import InvalidProfile


def refuse_repeated_keys(body: bytes) -> None:
    """Refuse JSON, already found to be valid, in which an object has a key twice.

    Raises
    ------
    InvalidRequest
        Readers of JSON take the last of them, or the first.
    """
    # Nothing is built: numbers stay text, and of an object nothing is kept.
    json.loads(body, object_pairs_hook=_refuse_repeated, parse_int=str, parse_float=str)


def refuse_lookalikes(profile: Profile) -> None:
    """Refuse a profile in which two names differ only in how Unicode writes their letters.

    Raises
    ------
    InvalidProfile
        Which names.
    """
    for kind, things in (("ops", profile.ops), ("gradients", profile.gradients)):
        _refuse_alike(kind, (thing.name for thing in things if not thing.name.isascii()))


def _refuse_alike(kind: str, names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        other = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise InvalidProfile(
                f"{kind}: {other!a} and {name!a} differ only in how Unicode writes their letters"
            )


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    if len(dict(pairs)) == len(pairs):
        return
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise InvalidRequest(f'the key "{key[:200]}" is twice in one object')
        seen.add(key)
