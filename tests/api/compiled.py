"""What the tests have compiled, as another process finds it that is told where its cache is."""

import os
import shutil
from collections.abc import Collection
from importlib.metadata import entry_points
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from numba.core.caching import UserProvidedCacheLocator

import pace
from pace.packs import GROUP

# The core's package, and those of packs.
PACKAGES = [Path(pace.__file__).parent] + [
    Path(str(resolve_name(entry.module).__file__)).parent for entry in entry_points(group=GROUP)
]


def copy_compiled(folder: Path, *, but: Collection[str] = ()) -> None:
    """Copy what lies beside the packages' modules to where ``NUMBA_CACHE_DIR=folder`` has numba look for it.

    Parameters
    ----------
    but
        Folders of a package that are left out, such as "throughput/kernels".
    """
    locator: Any = UserProvidedCacheLocator
    for package in PACKAGES:
        for place, _, names in os.walk(package, followlinks=True):
            modules = Path(place).parent
            found = [name for name in names if name.endswith((".nbi", ".nbc"))]
            if not found or modules.relative_to(package).as_posix() in but:
                continue
            copied = folder / locator.get_suitable_cache_subpath(str(modules / "any.py"))
            copied.mkdir(parents=True)
            for name in found:
                shutil.copy2(Path(place) / name, copied)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of such a cache."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*.nb?")
        if path.is_file()
    }
