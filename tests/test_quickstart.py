"""The quickstart does what it says: all of its commands and its program, as they stand on the page."""

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "quickstart.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a service is ready."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(f"{url}/readyz").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"the service at {url} is not ready")


@pytest.mark.slow
def test_the_quickstart_works_as_it_stands(tmp_path: Path) -> None:
    """A newcomer who pastes every block, from the plan to the job that finds the service, meets no error."""
    port = free_port()
    shutil.copytree(ROOT / "examples" / "profiles", tmp_path / "examples" / "profiles")
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "PACE_DATABASE_URL": f"sqlite:///{tmp_path}/pace.db",
    }
    ran, service = [], None
    try:
        for language, text in BLOCK.findall(
            PAGE.replace(":8080", f":{port}").replace("--port 8080", f"--port {port}")
        ):
            if language == "python":
                (tmp_path / "train.py").write_text(text, encoding="utf-8")
            elif text.startswith("pace serve"):
                service = subprocess.Popen(text.split(), cwd=tmp_path, env=environment)
                wait_for(f"http://127.0.0.1:{port}", service)
            elif not text.startswith("scripts/install"):
                done = subprocess.run(
                    ["bash", "-euc", text],
                    cwd=tmp_path,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=300,
                )
                assert done.returncode == 0, f"{text}{done.stdout}{done.stderr}"
                ran.append(done.stdout)
        assert service is not None
        jobs = httpx.get(f"http://127.0.0.1:{port}/v1/jobs").json()
    finally:
        if service is not None:
            service.terminate()
            service.wait(60)

    assert (tmp_path / "answer.json").read_bytes() == (tmp_path / "schedule.json").read_bytes()
    assert (tmp_path / "schedule.png").stat().st_size > 10_000
    printed = [set(re.findall(r"weights (-?[\d.]+)", output)) for output in ran if "weights" in output]
    assert [len(weights) for weights in printed] == [1, 1]  # both ranks end with the same weights
    assert printed[0] == printed[1]  # whatever the service answers
    assert "quickstart" in str(jobs)
