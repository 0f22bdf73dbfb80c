"""A real S3-compatible server of the tests' own: moto's, in a process of its own, reached over HTTP."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

# What every S3 client wants to have; this server believes all.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "test",
    "AWS_SECRET_ACCESS_KEY": "test",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SERVER = """
import signal
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
signal.pause()
"""


class ObjectServer:
    """A running server; buckets are made in it by name."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env=os.environ | CREDENTIALS,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        self.endpoint = f"http://127.0.0.1:{int(self._process.stdout.readline())}"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def create_bucket(self) -> str:
        """Make a new bucket and return its name."""
        name = f"pace-{uuid.uuid4().hex}"
        with self.client() as client:
            client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> set[str]:
        """Return the keys of all documents of a bucket, whatever its prefix."""
        with self.client() as client:
            found = client.list_objects_v2(Bucket=bucket).get("Contents", [])
        return {each["Key"] for each in found if "/documents/" in each["Key"]}

    @contextmanager
    def client(self) -> Iterator["S3Client"]:
        """Connect as somebody else would."""
        import boto3

        client = boto3.session.Session().client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id="test",
            aws_secret_access_key="test",
        )
        try:
            yield client
        finally:
            client.close()

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let the server say nothing more, with all connections open, until the end."""
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)
