"""The oldest version of torch that each feature runs on; docs/reference/compatibility.md publishes it."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from pace.errors import InvalidUse

TRAINING = "pace.runtime"
APPLY = "pace.runtime.fsdp.apply"
HSDP = "pace.runtime.fsdp.attach"
PLANNER = "pace.runtime.inductor"
SCATTER_SETTINGS = "Fsdp2Settings with max_input_buffers > 1 or separate_reduce_scatter_group"

MINIMUMS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        TRAINING: (2, 8),  # PrefixStore.clone
        APPLY: (2, 8),  # FSDPModule.set_reshard_after_forward
        HSDP: (2, 9),  # the objects that call a unit's collectives
        PLANNER: (2, 10),  # control dependencies in FX graphs
        SCATTER_SETTINGS: (2, 13),
    }
)


def require_torch(feature: str, error: type[Exception] = InvalidUse) -> None:
    """Refuse a feature that the installed torch is too old for.

    Parameters
    ----------
    feature
        A key of ``MINIMUMS``.
    error
        The type of the error.
    """
    version = str(torch.__version__)
    major, minor = MINIMUMS[feature]
    # Builds before a release, such as 2.11.0a0 of NVIDIA's images, have what the release has.
    if tuple(map(int, version.split(".")[:2])) < (major, minor):
        raise error(
            f"{feature} needs torch >= {major}.{minor}, this is {version}: upgrade torch or do without it"
        )
