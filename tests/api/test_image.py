"""The image's compile cache, as far as it can be told without building the image."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[2]
_TIMEOUT_S = 900


def test_the_image_is_built_with_all_that_a_worker_compiles(tmp_path: Path) -> None:
    """A worker that starts with a copy of the build's cache adds nothing to it, whatever it is asked."""
    dockerfile = (_ROOT / "Dockerfile").read_text()
    warms = re.search(r"^RUN NUMBA_CACHE_DIR=(\S+) python -c (.+)$", dockerfile, re.MULTILINE)
    assert warms is not None
    folder, (program,) = warms[1], shlex.split(warms[2])
    # The entry point gives every container a copy of that folder.
    assert f"cp -a {folder} " in dockerfile
    named = dict(re.findall(r"(NUMBA_CPU_\w+)=(\w*)", dockerfile))
    assert named == {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    built, started = tmp_path / "compiled", tmp_path / "numba"
    _run(program, named | {"NUMBA_CACHE_DIR": str(built)})
    compiled = _contents(built)
    assert any(name.endswith(".nbc") for name in compiled)
    shutil.copytree(built, started)
    asks = "import pace.api.workers.preloaded, tests.api.every_question as all; all.ask_everything()"
    _run(asks, named | {"NUMBA_CACHE_DIR": str(started)})
    assert _contents(started) == compiled


def _run(program: str, environment: dict[str, str]) -> None:
    command = [sys.executable, "-c", program]
    subprocess.run(command, env=os.environ | environment, cwd=_ROOT, check=True, timeout=_TIMEOUT_S)


def _contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.nb?")
        if path.is_file()
    }
