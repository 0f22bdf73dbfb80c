"""The list of torch's functions that the runtime replaces, and the code that replaces them.

Every patch calls torch's own function. It stays until the process ends, as other code may have wrapped it
since. Patches that depend on a wrapper check for open wrappers when they are called.
"""

import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any

PLACES: dict[str, str] = {
    "torch.autograd:_engine_run_backward": "tells when the outermost backward pass ends",
    "torch.jit._recursive:create_script_module": "tells which parameters compiled modules share",
    "torch._dynamo.eval_frame:install_generation_tagging_init": "tells when a compiled function begins",
    "torch._C:ScriptFunction.__call__": "waits for updates of its arguments, as all below",
    "torch._C:_to_dlpack": "reads the tensor that it is given",
    "torch._functorch.eager_transforms:_wrap_for_grad": "hands it to torch.func.grad and others",
    "torch._functorch.eager_transforms:_wrap_functional_tensor": "hands it to torch.func.functionalize",
    "torch._functorch.vmap:_add_batch_dim": "hands it to torch.func.vmap",
    "torch:to_dlpack": "reads the tensor that it is given",
    "torch.utils.dlpack:to_dlpack": "reads the tensor that it is given",
    "torch:tensor": "copies",
    "torch:as_tensor": "copies or shares memory",
    "torch:asarray": "copies or shares memory",
    "torch:Tensor.__new__": "shares memory",
    "torch:Tensor.new_tensor": "copies",
    "torch:Tensor.as_subclass": "shares memory",
    "torch:sparse_coo_tensor": "copies",
    "torch:sparse_compressed_tensor": "copies",
    "torch:sparse_csr_tensor": "copies",
    "torch:sparse_csc_tensor": "copies",
    "torch:sparse_bsr_tensor": "copies",
    "torch:sparse_bsc_tensor": "copies",
    "torch.serialization:_save": "looks for values of pending parameters, in mode='check'",
    "torch.serialization:_legacy_save": "looks for them, too",
    "torch._C:_set_default_tensor_type": "takes what stands for the legacy constructors",
}
"""Where (``module:name``), and what for. The legacy constructors (``torch.FloatTensor``) come in addition."""

_done: set[str] = set()


def patch(place: str, make: Callable[[Any], Any]) -> Any:
    """Replace torch's own function by ``make(own)``, once in a process.

    Returns
    -------
    Torch's own function, or None if its module is not loaded or it was replaced before.
    """
    assert place in PLACES, place
    module, _, path = place.partition(":")
    owner: Any = sys.modules.get(module)
    if place in _done or owner is None:
        return None
    *outer, name = path.split(".")
    for each in outer:
        owner = getattr(owner, each, None)
    own = getattr(owner, name, None)
    if own is None:
        return None
    _done.add(place)
    made = make(own)
    setattr(owner, name, made)
    return own


def patch_legacy_constructors(make: Callable[[Any], Any]) -> list[tuple[Any, Any]]:
    """Replace ``torch.FloatTensor`` and similar types by ``make(own)``; return pairs of both."""
    made: list[tuple[Any, Any]] = []
    for own in torch_legacy_constructors():
        module, _, name = str(own).split("'")[1].rpartition(".")
        owner = importlib.import_module(module)
        if getattr(owner, name, None) is own:
            made.append((own, make(own)))
            setattr(owner, name, made[-1][1])
    return made


def torch_legacy_constructors() -> list[Any]:
    """Return torch's types that create tensors of one dtype and device."""
    torch: Any = importlib.import_module("torch")
    return sorted(torch._tensor_classes, key=str)


def torchs_own(places: Iterable[str]) -> tuple[Any, ...]:
    """Return what is in some places that are not patched yet, and the legacy constructors."""
    found = []
    for place in places:
        module, _, name = place.partition(":")
        if place not in _done and "." not in name:
            found.append(getattr(sys.modules.get(module), name, None))
    return (*(each for each in found if each is not None), *torch_legacy_constructors())
