"""API keys over the wire."""

from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from pace.client.documents import JobName
from pace.documents.base import Document

KeyId = Annotated[str, Field(pattern="^[0-9a-f]{16}$")]
KeyScope = Literal["read", "submit", "admin"]


def _in_utc(moment: datetime) -> datetime:
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise ValueError("is no moment that UTC has a name for") from None


class KeyRequest(Document):
    """Body of ``POST /v1/keys``.

    Attributes
    ----------
    name
        Whose key it is, for people.
    expires_at
        From when on it is not valid, with its time zone; None for never.
    """

    name: JobName
    scopes: Annotated[tuple[KeyScope, ...], Field(min_length=1, max_length=3)] = ("read", "submit")
    expires_at: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = None


class KeyResource(Document):
    """What is known of a key; never its secret.

    Attributes
    ----------
    last_used_at
        Within about a minute; None if it was not used since this is recorded.
    """

    id: KeyId
    name: str
    scopes: tuple[KeyScope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class CreatedKey(KeyResource):
    """A new key with its token, which nothing can show again."""

    token: str


class KeyPage(Document):
    """Keys, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[KeyResource, ...]
    next: str | None
