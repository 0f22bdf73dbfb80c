"""Poison for ``mode="check"``: it finds uses of parameters whose updates are pending.

From ``step()`` until its update is applied, a parameter holds signaling NaNs with a mark of their own, and
its true values are kept aside. Two things find a use that no guard has seen:

- A dispatch mode sees every operator of this thread, also those of C++ extensions and process groups. It
  raises if one uses poisoned memory.
- Marks show where values came from that code has read past torch (NumPy, an address). They are looked for in
  what a backward pass begins with, in gradients, their sums, the optimizer's state, collectives and saved
  files. Copies and a CPU's arithmetic keep a mark; a GPU's arithmetic does not.

A parameter that changed while it was poisoned is found when its values are given back: arithmetic makes a
signaling NaN quiet, so its bits change.
"""

import contextlib
import io
import linecache
import pickle
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, cast

import numpy as np
import torch
from torch._C._distributed_c10d import _resolve_process_group
from torch.distributed import ProcessGroup
from torch.utils._python_dispatch import TorchDispatchMode, _pop_mode, _push_mode
from torch.utils._pytree import tree_leaves

from pace.errors import InvalidUse
from pace.runtime.engine.buffers import Slot, local_part
from pace.runtime.event_log import log
from pace.runtime.gates.guarded_tensors import ask_arguments, without_guards
from pace.runtime.gates.memory_watch import extent
from pace.runtime.gates.patches import before_backward, patch
from pace.runtime.optimizer.group_update import plain_mode


@dataclass(frozen=True, slots=True)
class _Mark:
    """The marked NaN of a dtype. Conversion between dtypes keeps the highest bits of its payload.

    Attributes
    ----------
    integer
        The dtype of its bits.
    bits
        The NaN, of parameter 0.
    mask
        The bits that tell it from other NaNs: not the sign, and not whether it is quiet.
    shift
        The lowest bit of the parameter's number; None if there is no room.
    """

    integer: torch.dtype
    bits: int
    mask: int
    shift: int | None


# Operators that use no value of a tensor.
_DESCRIBING = ("aten.new_", "aten.is_same_size.", "aten.sym_", "prim.")

# Operators beside collectives that send no value of a tensor.
_SENDING_NOTHING = (
    "_wrap_tensor_autograd",
    "barrier",
    "irecv",
    "monitored_barrier_",
    "recv_",
    "recv_any_source_",
    "wait_tensor",
)

_PAYLOAD, _NUMBERS = 0x15A, 1 << 13
_MARKS = {
    torch.float64: _Mark(torch.int64, 0x7FF << 52 | _PAYLOAD << 42, 0x7FF << 52 | 0x1FF << 42, 29),
    torch.float32: _Mark(torch.int32, 0xFF << 23 | _PAYLOAD << 13, 0xFF << 23 | 0x1FF << 13, 0),
    torch.float16: _Mark(torch.int16, 0x1F << 10 | _PAYLOAD, 0x1F << 10 | 0x1FF, None),
    torch.bfloat16: _Mark(torch.int16, 0xFF << 7 | _PAYLOAD >> 3, 0xFF << 7 | 0x3F, None),
}


@dataclass(slots=True)
class _Kept:
    """A poisoned parameter's true values, the bits that it holds meanwhile, and its addresses."""

    values: torch.Tensor
    bits: int | None
    begin: int
    end: int


class Poison:
    """The poison of one wrapper's pending parameters.

    Attributes
    ----------
    steps
        Number of steps after which parameters were poisoned. After the first error there is no more poison.
    """

    def __init__(self, rank: int) -> None:
        self.steps = 0
        self._rank = rank
        self._kept: dict[Slot, _Kept] = {}
        self._numbers: dict[str, int] = {}
        self._found = False
        self._unmarked: str | None = None
        self._mode = _Watch(self)
        _replace_mode(None, self._mode)
        alive = weakref.ref(self)

        def check_loss(tensors: Sequence[Any]) -> None:
            poison = alive()
            if poison is not None:
                poison.check("what backward() starts from", tensors)

        self._stop = before_backward(check_loss)
        _watching.add(self)
        patch("torch.serialization:_save", _checking_saves)

    def place(self, slots: Iterable[Slot], states: Sequence[Mapping[str, Any]]) -> None:
        """Poison parameters whose updates are pending, and look for marks in the optimizer's state."""
        slots = [] if self._found else list(slots)
        self.check("the optimizer's state", [list(each.values()) for each in states])
        with without_guards():
            self.check("a parameter", [local_part(slot.parameter) for slot in slots])
        self.steps += not self._found
        with without_guards(), plain_mode("cpu"):
            for slot in slots:
                memory = local_part(slot.parameter).data
                begin, end = extent(memory)
                bits = self._bits(slot, memory.dtype)
                self._kept[slot] = _Kept(memory.clone(), bits, begin, end)
                if bits is not None:
                    _bits_of(memory).fill_(bits)

    def _bits(self, slot: Slot, dtype: torch.dtype) -> int | None:
        """Return the NaN for a parameter; None if its type has none, so that only operators find its uses."""
        if slot.name not in self._numbers:
            _names.append(slot.name)
            self._numbers[slot.name] = len(_names)
        mark = _MARKS.get(dtype.to_real() if dtype.is_complex else dtype)
        if mark is None:
            return None
        number = self._numbers[slot.name] if len(_names) < _NUMBERS else 0
        return mark.bits | (0 if mark.shift is None else number << mark.shift)

    def give_back(self, slots: Iterable[Slot]) -> None:
        """Give parameters their true values.

        Raises
        ------
        InvalidUse
            If one was changed while it was poisoned.
        """
        changed = []
        with without_guards(), plain_mode("cpu"):
            for slot in slots:
                kept = self._kept.pop(slot, None)
                if kept is None:
                    continue
                memory = local_part(slot.parameter).data
                whole = kept.bits is None or bool((_bits_of(memory) == kept.bits).all())
                if not whole or memory.data_ptr() != kept.begin:
                    changed.append(slot.name)
                memory.copy_(kept.values)
        if changed:
            self._refuse(f"the memory of {_listed(changed)} was changed past torch while", changed)

    def check(self, where: str, values: Any) -> None:
        """Look for marks in tensors.

        Raises
        ------
        InvalidUse
            If there is one.
        """
        if self._found:
            return
        unmarked = False
        numbers: set[int] | None = None
        with without_guards(), plain_mode("cpu"):
            for tensor in _tensors_in(values):
                found = _numbers_in(tensor)
                if found is not None:
                    numbers = found | (numbers or set())
                elif self._unmarked is None and tensor.dtype in _MARKS:
                    unmarked = unmarked or bool(tensor.isnan().any())
        if numbers is not None:
            names = [_names[each - 1] for each in sorted(numbers) if 0 < each <= len(_names)]
            read = _listed(names) or "a parameter"
            self._refuse(f"{where} has values that were read from {read} past torch while", names)
        if unmarked:
            self._unmarked = f"step {self.steps}, in {where}"
            log.warning("pace.unmarked_nan", rank=self._rank, step=self.steps, where=where)

    def check_operator(self, function: Any, values: Any) -> None:
        """Refuse an operator that uses poisoned memory, or sends what was read from it."""
        name = str(function)
        if self._found or name.startswith(_DESCRIBING) or "_like." in name:
            return
        with without_guards():
            tensors = _tensors_in(values)
            spans = [extent(each) for each in tensors] if self._kept else []
        used = [
            slot.name
            for slot, kept in list(self._kept.items())
            if any(begin < kept.end and kept.begin < end for begin, end in spans)
        ]
        if used:
            self._refuse(f"{name} uses {_listed(used)} past PACE's guards while", used)
        if name.startswith(("c10d.", "_c10d_functional.")):
            self.check(f"the collective {name}", _sent(function._schema, *values))

    def _refuse(self, what: str, names: Sequence[str]) -> None:
        self._found = True
        pending = [slot.name for slot in list(self._kept) if slot.name not in names]
        also = f" (also pending: {_listed(pending)})" if pending else ""
        raise InvalidUse(
            f'mode="check": rank {self._rank}, step {self.steps}{_user_line()}: {what} the update was'
            f' pending{also}: call synchronize() before that use, or train with mode="barrier"'
        )

    def close(self) -> None:
        """Give back all values, also after a failure, and stop looking."""
        self._stop()
        _watching.discard(self)
        _replace_mode(self._mode, None)
        with contextlib.suppress(InvalidUse):
            self.give_back(list(self._kept))

    def conclude(self) -> None:
        """Log what the check has shown, unless it has raised."""
        if self._found:
            return
        result = "no missed use of a pending parameter was found"
        if self._unmarked is not None:
            result = (
                f"not decided: a NaN without a mark appeared ({self._unmarked}). If it also appears with"
                ' mode="barrier", your model makes it, and no missed use was found before it'
            )
        log.warning("pace.checked", rank=self._rank, steps=self.steps, result=result)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # in torch
    """Shows the poison each operator of this thread, below all other modes."""

    supports_higher_order_operators = True

    def __init__(self, poison: Poison) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # in torch
        self._poison = weakref.ref(poison)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Leave compilation alone: pending updates are applied before compiled code."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """See ``TorchDispatchMode``."""
        named = kwargs or {}
        if getattr(func, "is_view", False):  # whoever uses the view comes here, too
            with without_guards():  # C++ code did not ask them, either
                return func(*args, **named)
        poison = self._poison()
        if poison is not None:
            poison.check_operator(func, (args, named))
        return func(*args, **named)


def _replace_mode(old: TorchDispatchMode | None, new: TorchDispatchMode | None) -> None:
    """Put a mode below those that user code has entered, which leaves them from the top, or remove it."""
    entered = [_pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    for mode in (new, *reversed(entered)):
        if mode is not None and mode is not old:
            _push_mode(mode)


_names: list[str] = []  # of all wrappers' parameters, in the order of the numbers in marks, which begin at 1
_watching: "weakref.WeakSet[Poison]" = weakref.WeakSet()


def _checking_saves(own: Any) -> Any:
    def save(obj: Any, *arguments: Any, **named: Any) -> Any:
        if _watching:
            finder = _Finder(io.BytesIO())
            with contextlib.suppress(Exception):  # torch.save will raise it
                finder.dump(obj)
            for poison in list(_watching):
                poison.check("what is saved", finder.tensors)
        return own(obj, *arguments, **named)

    return save


class _Finder(pickle.Pickler):
    """Finds the tensors and arrays in what is saved."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.tensors: list[torch.Tensor] = []

    def reducer_override(self, found: Any) -> Any:
        """Keep a tensor instead of writing it."""
        if isinstance(found, np.ndarray) and found.dtype.kind == "f":
            found = torch.from_numpy(found.copy())
        if not isinstance(found, torch.Tensor):
            return NotImplemented
        ask_arguments((found,), {})  # as torch.save does
        self.tensors.append(found)
        return str, ()


def _sent(schema: Any, arguments: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return what a collective sends from this rank; what it only writes may hold anything before."""
    given = dict(zip((each.name for each in schema.arguments), arguments, strict=False)) | dict(named)
    name = schema.name.partition("::")[-1]
    if name in _SENDING_NOTHING:
        return []
    if name.startswith("broadcast"):
        group = given["process_group"] if "process_group" in given else given["group_name"]
        if _rank_in(group) != given.get("root_rank", given.get("src")):
            return []
    if name == "batch_p2p_ops":
        return [
            each for each, kind in zip(given["tensors"], given["op_list"], strict=True) if kind == "isend"
        ]
    return [value for argument, value in given.items() if not argument.startswith("out")]


def _rank_in(group: Any) -> int:
    """Return this rank's number in a process group, given as operators get it: boxed, or by its name."""
    if isinstance(group, str):
        return int(_resolve_process_group(cast("Any", group)).rank())
    return (group if isinstance(group, ProcessGroup) else ProcessGroup.unbox(group)).rank()


def _tensors_in(values: Any) -> list[torch.Tensor]:
    """Return the tensors in nested containers that have memory; of a DTensor, this rank's part."""
    found = []
    for leaf in tree_leaves(values):
        if isinstance(leaf, torch.Tensor) and not torch._C._functorch.is_functorch_wrapped_tensor(leaf):
            part = local_part(leaf)
            if type(part).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
                continue  # it stands for others, as where code is compiled
            part = part._values() if part.layout is torch.sparse_coo else part
            if part.layout is torch.strided and part.device.type != "meta":
                found.append(part.detach())
    return found


def _bits_of(tensor: torch.Tensor) -> torch.Tensor:
    real = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return real.view(_MARKS[real.dtype].integer)


def _numbers_in(tensor: torch.Tensor) -> set[int] | None:
    """Return the numbers of the parameters whose marks a tensor has (0: not known); None without marks."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor.resolve_neg()
    mark = _MARKS.get(tensor.dtype)
    if mark is None:
        return None
    bits = tensor.view(mark.integer)
    marked = (bits & mark.mask) == mark.bits
    if not bool(marked.any()):
        return None
    if mark.shift is None:
        return {0}
    return set(((bits[marked] >> mark.shift) & (_NUMBERS - 1)).tolist())


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more


def _user_line() -> str:
    """Return where the user's code is, for a message."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "pace") and package not in sys.stdlib_module_names:
            file, line = frame.f_code.co_filename, frame.f_lineno
            return f", at {file}:{line} ({linecache.getline(file, line).strip()})"
        frame = frame.f_back
    return ""
