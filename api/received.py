"""What reader processes make of bodies, as plain values."""

import hashlib
from dataclasses import dataclass

from pace.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedProfile:
    """A valid profile.

    Attributes
    ----------
    size_bytes
        Length of its JSON.
    document
        Its JSON, compressed by zlib, as it is stored.
    """

    sha256: str
    name: str
    fingerprint: str
    num_ops: int
    num_gradients: int
    size_bytes: int
    document: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedRequest:
    """A valid request for a schedule.

    Attributes
    ----------
    profile
        The profile, or None if the request only names one that is stored.
    options
        The options' canonical JSON.
    """

    job: str | None
    profile_sha256: str
    profile: ReceivedProfile | None
    options: str

    @property
    def key(self) -> str:
        """SHA-256 over profile, options and solver version: equal keys have equal schedules."""
        return hashlib.sha256(
            "\n".join([__version__, self.profile_sha256, self.options]).encode()
        ).hexdigest()
