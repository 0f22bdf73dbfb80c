"""What tasks work on: a document of the tenant's, kept with the request that brought it."""

from dataclasses import dataclass

from sqlalchemy import Connection, select

from pace.api.errors import InvalidRequest
from pace.api.received import ReceivedRequest, ReceivedWhatIf
from pace.api.storage.records import ProfileRecord
from pace.api.storage.store import hold_profile, save_profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInput:
    """What a task works on besides its options: a document, compressed by zlib."""

    document: bytes
    object_key: str | None
    num_gradients: int = 0
    num_ops: int = 0


def save_profile_input(
    connection: Connection, tenant: str, received: ReceivedRequest | ReceivedWhatIf
) -> str:
    """Keep the profile of a request, or find the one that it names; return its fingerprint.

    Nobody deletes the profile until this transaction ends.

    Raises
    ------
    InvalidRequest
        If the request names a profile that is not stored.
    """
    if received.profile is not None:
        save_profile(connection, tenant, received.profile)
        return received.profile.fingerprint
    fingerprint = hold_profile(connection, tenant, received.profile_sha256)
    if fingerprint is None:
        raise InvalidRequest(f"profile_id: there is no profile {received.profile_sha256}")
    return fingerprint


def find_profile_input(
    connection: Connection,
    tenant: str,
    sha256: str,
    result_id: str,  # noqa: ARG001  # as for predictions: both stand in one table of kinds
) -> TaskInput | None:
    """Return the profile that a schedule or a what-if is made from; None if it was deleted."""
    row = connection.execute(
        select(
            ProfileRecord.document,
            ProfileRecord.object_key,
            ProfileRecord.num_gradients,
            ProfileRecord.num_ops,
        ).where(ProfileRecord.tenant == tenant, ProfileRecord.sha256 == sha256)
    ).first()
    return None if row is None else TaskInput(**row._mapping)
