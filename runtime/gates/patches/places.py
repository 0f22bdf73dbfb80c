"""The list of torch's functions that the runtime replaces, and the code that replaces them.

Every patch calls torch's own function. It stays until the process ends, as other code may have wrapped it
since. Patches that depend on a wrapper check for open wrappers when they are called.
"""

import sys
from collections.abc import Callable
from typing import Any

PLACES: dict[str, str] = {
    "torch.autograd:_engine_run_backward": "tells when the outermost backward pass ends",
    "torch.jit._recursive:create_script_module": "tells which parameters compiled modules share",
    "torch.serialization:_save": "looks for values of pending parameters, in mode='check'",
}
"""Where (``module:name``), and what for."""

_done: set[str] = set()


def patch(place: str, make: Callable[[Any], Any]) -> None:
    """Replace torch's own function by ``make(own)``, once in a process, if its module is loaded."""
    assert place in PLACES, place
    module, _, name = place.partition(":")
    owner: Any = sys.modules.get(module)
    own = getattr(owner, name, None)
    if place not in _done and own is not None:
        _done.add(place)
        setattr(owner, name, make(own))
