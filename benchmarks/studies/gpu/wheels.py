"""Wheels for a machine without network: downloaded elsewhere, unpacked beside what is installed there."""

import importlib.metadata
import re
import subprocess
import sys
import zipfile
from pathlib import Path

WANTED = (
    *("pydantic>=2.12,<3", "ijson>=3.3", "networkx>=3.2", "pulp>=3.3.2,<4", "rich>=13.7", "typer>=0.19"),
    *("structlog>=24.4", "httpx>=0.27", "tenacity>=9"),
    *("pytest>=8.3", "pytest-timeout>=2.3", "pytest-xdist>=3.6"),
)
"""What PACE and its tests need and a machine for torch may lack; numpy, scipy and numba are too large."""
PYDANTIC = ("pydantic", "pydantic_core", "annotated_types", "typing_extensions", "typing_inspection")
"""These fit one another only as they were packed."""
OLDEST_PYDANTIC = (2, 12)
MOST_BYTES = 60_000_000


def pack(folder: Path) -> int:
    """Download the wheels, for CPython 3.12 on x86-64 Linux, and return their size in bytes.

    Raises
    ------
    RuntimeError
        When they are larger than 60 MB together, or pip fails.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tags = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64", "any")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--only-binary=:all:",
        "--dest",
        str(folder),
    ]
    command += ["--python-version", "3.12", "--implementation", "cp", "--abi", "cp312", "--abi", "none"]
    command += [word for tag in tags for word in ("--platform", tag)]
    ended = subprocess.run([*command, *WANTED], capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"pip download failed:\n{ended.stderr[-2000:]}")
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > MOST_BYTES:
        raise RuntimeError(f"{folder} holds {size / 1e6:.0f} MB of wheels: at most {MOST_BYTES / 1e6:.0f} MB")
    return size


def unpack_missing(wheels: Path, into: Path) -> list[str]:
    """Unpack the wheels whose package is not installed, and return their names.

    Nothing that is installed is replaced, but for a pydantic that is too old, together with what it needs.
    """
    used = []
    replaced = PYDANTIC if (_installed("pydantic") or (0,)) < OLDEST_PYDANTIC else ()
    for wheel in sorted(wheels.glob("*.whl")):
        name = wheel.name.split("-", 1)[0].lower()
        if _installed(name) is not None and name not in replaced:
            continue
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                written = Path(archive.extract(member, into))
                if member.external_attr >> 16 & 0o111 and written.is_file():
                    written.chmod(0o755)
        used.append(wheel.name)
    return used


def _installed(name: str) -> tuple[int, ...] | None:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
    return tuple(int(number) for number in re.findall(r"\d+", version)[:3])
