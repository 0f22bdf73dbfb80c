"""What the tests have compiled, as another process finds it that is told where its cache is."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from numba.core.caching import UserProvidedCacheLocator

import pace

PACKAGE = Path(pace.__file__).parent


def copy_compiled(folder: Path, *, but: Collection[str] = ()) -> None:
    """Copy what lies beside the package's modules to where ``NUMBA_CACHE_DIR=folder`` has numba look for it.

    Parameters
    ----------
    but
        Folders of the package that are left out, such as "throughput/kernels".
    """
    locator: Any = UserProvidedCacheLocator
    for place, _, names in os.walk(PACKAGE, followlinks=True):
        modules = Path(place).parent
        found = [name for name in names if name.endswith((".nbi", ".nbc"))]
        if not found or modules.relative_to(PACKAGE).as_posix() in but:
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
