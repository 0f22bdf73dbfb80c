"""Names that a package exports and that are loaded when they are first used."""

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

WRAPPERS = {
    "DistributedOptimizer": (
        "use `from pace.runtime.torch import DistributedOptimizer`, or pace.runtime.horovod"
    ),
    "attach": "use `from pace.runtime.ddp import attach`; pace.runtime.fsdp has one for HSDP",
}
"""Names that users look for in ``pace`` and ``pace.runtime``, and what to write instead."""


def loads_names(
    package: str, homes: Mapping[str, tuple[str, ...]], elsewhere: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    """Return a package's ``__getattr__`` for names by the module that has them.

    Parameters
    ----------
    elsewhere
        What to write instead of an import of these names from the package.
    """
    home_of = {name: home for home, names in homes.items() for name in names}

    def load(name: str) -> Any:
        if elsewhere is not None and name in elsewhere:
            # An AttributeError would lose its text in ``from package import name``.
            raise ImportError(f"{package} has no {name}: {elsewhere[name]}", name=package)
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return load
