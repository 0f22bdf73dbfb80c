"""Large documents in S3 object storage, named by rows of the database; needs ``pace-scheduler[s3]``.

Every upload has a new key, so no two rows share an object, and objects that no row names can be deleted. A
document is uploaded before the row that names it is stored, and read after the transaction that found its
row. ``pace.api.storage.documents`` deletes objects that no row names.
"""

import hashlib
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from pace.api.errors import ObjectLost, ObjectsUnavailable
from pace.api.settings import ObjectLocation

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

_CONNECTIONS = 16
_FOLDER = "documents/"


class Held(Protocol):
    """A value whose document may be in object storage; `document` is then empty."""

    @property
    def document(self) -> bytes:
        """The document, or nothing."""

    @property
    def object_key(self) -> str | None:
        """Where the document is, or None."""


H = TypeVar("H", bound=Held)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredDocument:
    """A document as the database has it."""

    document: bytes
    object_key: str | None = None


class ObjectStore:
    """Documents in a bucket. Every method blocks.

    Parameters
    ----------
    timeout_s
        Seconds to connect, and between two received parts; each request is tried twice.
    min_bytes
        Shorter documents belong into the database.
    """

    def __init__(
        self,
        location: ObjectLocation,
        *,
        timeout_s: float,
        min_bytes: int,
    ) -> None:
        self.location = location
        self.min_bytes = min_bytes
        self._client = _connect(location, timeout_s)

    def put(self, document: bytes) -> str:
        """Upload a document; return its new key, which tells its SHA-256."""
        key = f"{uuid.uuid4().hex}-{hashlib.sha256(document).hexdigest()}"
        with _translated():
            self._client.put_object(Bucket=self.location.bucket, Key=self._path(key), Body=document)
        return key

    def get(self, key: str) -> bytes:
        """Return a document.

        Raises
        ------
        ObjectLost
            If the document is missing or differs from the upload.
        """
        with _translated():
            answer = self._client.get_object(Bucket=self.location.bucket, Key=self._path(key))
            document = answer["Body"].read()
        if hashlib.sha256(document).hexdigest() != key.partition("-")[2]:
            raise ObjectLost(f"object {key} differs from what was stored")
        return document

    def whole(self, held: H) -> H:
        """Return a copy with its document, from the database or object storage."""
        if held.object_key is None:
            return held
        return replace(held, document=self.get(held.object_key), object_key=None)  # type: ignore[type-var]  # every Held is a dataclass

    def pages(self) -> Iterator[list[str]]:
        """Return the keys of all documents, up to a thousand at a time."""
        start = self._path("")
        token: dict[str, str] = {}
        while True:
            with _translated():
                page = self._client.list_objects_v2(Bucket=self.location.bucket, Prefix=start, **token)  # type: ignore[arg-type]  # ContinuationToken or nothing
            yield [found["Key"].removeprefix(start) for found in page.get("Contents", [])]
            if not page.get("IsTruncated"):
                return
            token = {"ContinuationToken": page["NextContinuationToken"]}

    def delete(self, keys: Sequence[str]) -> None:
        """Delete documents; those that are not there are no error."""
        for key in keys:
            with _translated():
                self._client.delete_object(Bucket=self.location.bucket, Key=self._path(key))

    def check(self) -> None:
        """Raise ObjectsUnavailable unless the bucket can be used."""
        try:
            with _translated():
                self._client.head_bucket(Bucket=self.location.bucket)
        except ObjectLost:
            raise ObjectsUnavailable(f"there is no bucket {self.location.bucket}") from None

    def owner(self, new_id: str | None = None) -> str | None:
        """Return the id of the database whose documents are here, or None; set it first if one is given."""
        path = f"{self.location.prefix}owner"
        with _translated():
            if new_id is not None:
                self._client.put_object(Bucket=self.location.bucket, Key=path, Body=new_id.encode())
            try:
                return self._client.get_object(Bucket=self.location.bucket, Key=path)["Body"].read().decode()
            except self._client.exceptions.NoSuchKey:
                return None

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def _path(self, key: str) -> str:
        return f"{self.location.prefix}{_FOLDER}{key}"


def _connect(location: ObjectLocation, timeout_s: float) -> "S3Client":
    import boto3
    from botocore.config import Config

    config = Config(
        connect_timeout=timeout_s,
        read_timeout=timeout_s,
        retries={"total_max_attempts": 2, "mode": "standard"},
        max_pool_connections=_CONNECTIONS,
        # Servers other than Amazon's know neither names of buckets as hosts nor its newest checksums.
        s3={"addressing_style": "path"} if location.endpoint else {},
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    return boto3.session.Session().client("s3", endpoint_url=location.endpoint or None, config=config)


@contextmanager
def _translated() -> Iterator[None]:
    """Convert errors to the service's own."""
    from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

    try:
        yield
    except ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        if code in ("NoSuchKey", "404"):
            raise ObjectLost(f"object storage does not have what the database names ({code})") from None
        raise ObjectsUnavailable(f"object storage refused: {code}") from None
    except (BotoCoreError, HTTPClientError, OSError) as error:
        raise ObjectsUnavailable(f"object storage does not answer: {type(error).__name__}") from None
