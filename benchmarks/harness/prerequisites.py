"""What a study needs besides this project: checked before it measures, and told in one line.

A study calls these functions after it has read its options, since what it needs depends on them.
``python -m benchmarks`` prints what they raise, and exits with 3. Here are all errors that a study may raise.
"""

import importlib
import shutil
import subprocess
from pathlib import Path

from pace.errors import PaceError


class Unavailable(PaceError):
    """A study cannot run on this machine as it is; the message says what would help."""


class TestbedUnavailable(Unavailable):
    """No testbed can be made on this machine by this user; the message says what would help."""

    __test__ = False  # pytest takes every class whose name begins so for a test


class WrongRate(Unavailable):
    """A link does not carry what it was shaped to."""


class RankFailed(PaceError):
    """A rank raised, died or did not answer in time; the message holds what it said."""


def require_packages(*modules: str, remedy: str = "scripts/install") -> None:
    """Import modules of optional packages; raises Unavailable if one cannot be imported."""
    for module in modules:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise missing_package(module.partition(".")[0], error, remedy) from None


def missing_package(package: str, error: ImportError, remedy: str = "scripts/install") -> Unavailable:
    """Return the error for a package that cannot be imported."""
    reason = "is not installed" if isinstance(error, ModuleNotFoundError) else f"does not work ({error})"
    return Unavailable(f"the Python package {package} {reason}: run {remedy}")


def require_program(name: str, package: str) -> str:
    """Return the path of a program of a Debian package; raises Unavailable if it is not there."""
    found = shutil.which(name)
    if found is None:
        raise Unavailable(f"needs `{name}`: apt-get install {package}")
    return found


def require_tensorflow(python: Path) -> None:
    """Raise Unavailable if an interpreter cannot run TensorFlow."""
    program = "import importlib.util as u, sys; sys.exit(u.find_spec('tensorflow') is None)"
    try:
        done = subprocess.run([python, "-c", program], capture_output=True, check=False)
    except OSError as error:
        raise Unavailable(f"{python}: {error.strerror}") from None
    if done.returncode != 0:
        raise Unavailable(f"{python} has no TensorFlow: {python} -m pip install tensorflow-cpu==2.21.0")


def require_network() -> None:
    """Raise TestbedUnavailable if no network namespaces can be made here."""
    from benchmarks.harness.network.hosts import why_unavailable

    if (reason := why_unavailable()) is not None:
        raise TestbedUnavailable(reason)
