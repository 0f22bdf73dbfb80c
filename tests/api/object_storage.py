"""A real object storage of the tests' own: SeaweedFS, in a process of its own, reached by the S3 protocol."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_fixed

from tests.free_ports import free_ports

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "the-key-of-tests",
    "AWS_SECRET_ACCESS_KEY": "the-secret-of-tests",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}
_KEY, _SECRET = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
# Requests that these do not sign are refused.
_IDENTITIES = {
    "identities": [
        {
            "name": "tests",
            "credentials": [{"accessKey": _KEY, "secretKey": _SECRET}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
    ]
}


# Beside the interpreter, as the package puts it there, or wherever it is installed.
WEED = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")


class ObjectServer:
    """A running server; buckets are made in it by name."""

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            (folder / "s3.json").write_text(json.dumps(_IDENTITIES))
            # Its own choice of ports would be the same for two servers on a machine.
            names = ("master", "volume", "filer", "s3")
            ports = free_ports(2 * len(names))
            http, grpc = dict(zip(names, ports, strict=False)), dict(zip(names, ports[4:], strict=True))
            assert WEED is not None
            command = [WEED, "server", "-s3", f"-s3.config={folder / 's3.json'}", f"-dir={folder}"]
            command += ["-ip=127.0.0.1", "-volume.max=500", "-master.volumeSizeLimitMB=64"]
            command += ["-s3.port.iceberg=0", "-s3.autoCreateBucket=false", "-master.telemetry=false"]
            command += [f"-{name}.port={http[name]}" for name in names]
            command += [f"-{name}.port.grpc={grpc[name]}" for name in names]
            self._process = stack.enter_context(
                subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            )
            stack.callback(self._process.kill)
            self.endpoint = f"http://127.0.0.1:{http['s3']}"
            self._await_answers()
            self._ends = stack.pop_all()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._ends.close()

    @retry(retry=retry_if_exception_type(Exception), wait=wait_fixed(0.1), stop=stop_after_delay(60))
    def _await_answers(self) -> None:
        """Wait until a document can be written: its parts find one another after they have started."""
        assert self._process.poll() is None
        bucket = self.create_bucket()
        with self.client() as client:
            client.put_object(Bucket=bucket, Key="first", Body=b"written")
            client.delete_object(Bucket=bucket, Key="first")
            client.delete_bucket(Bucket=bucket)

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
            aws_access_key_id=_KEY,
            aws_secret_access_key=_SECRET,
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
