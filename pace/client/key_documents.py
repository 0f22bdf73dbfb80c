"""Documents of the HTTP interface for API keys."""

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
        raise ValueError("expected a time that UTC can express") from None


class KeyRequest(Document):
    """Body of ``POST /v1/keys``.

    Attributes
    ----------
    name
        Name of the key, for people.
    expires_at
        Time at which the key becomes invalid, with a time zone; null for never.
    """

    name: JobName
    scopes: Annotated[tuple[KeyScope, ...], Field(min_length=1, max_length=3)] = ("read", "submit")
    expires_at: Annotated[AwareDatetime, AfterValidator(_in_utc)] | None = None


class KeyResource(Document):
    """An API key without its secret.

    Attributes
    ----------
    last_used_at
        Time of the last use, to about a minute; null if no use was recorded.
    """

    id: KeyId
    name: str
    scopes: tuple[KeyScope, ...]
    created_at: datetime
    expires_at: datetime | None
    last_used_at: datetime | None
    revoked_at: datetime | None


class CreatedKey(KeyResource):
    """A new key with its token, which is shown only once."""

    token: str


class KeyPage(Document):
    """Keys, newest first; `next` is the cursor of the next page, if there is one."""

    items: tuple[KeyResource, ...]
    next: str | None
