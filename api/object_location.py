"""Where in object storage a service keeps documents."""

from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectLocation:
    """A bucket, the beginning of all keys in it, and the server; an empty endpoint is Amazon's."""

    bucket: str
    prefix: str
    endpoint: str

    @classmethod
    def of(cls, url: str, endpoint: str = "") -> "ObjectLocation":
        """Take ``s3://BUCKET/PREFIX`` apart; raises ValueError for anything else."""
        parts = urlsplit(url)
        if parts.scheme != "s3" or not parts.netloc or parts.query or parts.fragment:
            raise ValueError("give s3://BUCKET or s3://BUCKET/PREFIX")
        prefix = parts.path.strip("/")
        return cls(bucket=parts.netloc, prefix=f"{prefix}/" if prefix else "", endpoint=endpoint)
