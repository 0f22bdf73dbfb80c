"""``fully_shard`` around a model: torch shards it, and the runtime sums gradients over replicas.

Every call of ``fully_shard`` creates a *unit*: parameters that are gathered together before use, and whose
gradients are reduce-scattered together. On a mesh with two dimensions torch then all-reduces a unit's shard
over its replicas and waits. While the runtime does this instead, units do not know their replicas. There are
hooks at two places: after the reduce-scatter of a gradient (torch calls the hooks of parameters there), and
before a unit is gathered.
"""

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from pace.errors import InvalidOptions, InvalidUse
from pace.runtime.engine.buffers import Slot, local_part
from pace.runtime.engine.plan import Buckets, GradientSize
from pace.runtime.engine.shard_units import UNIT_KIND, Unit, units_of
from pace.runtime.gates.gradient_gates import without_gates
from pace.runtime.transports.compression import Compression

_COMPRESSIONS: dict[torch.dtype | None, Compression] = {torch.float16: "fp16", torch.bfloat16: "bf16"}


class FullyShardWrapper:
    """The units of a model, which do not sum over replicas from ``stand_aside`` to ``close``.

    Attributes
    ----------
    quiet
        Whether the current backward pass is one without all-reduces, by the user's setting.
    """

    quiet_passes = "after set_requires_all_reduce(False)"
    swaps_parameters = True
    kinds = frozenset({UNIT_KIND})
    wrapper: Any = None

    def __init__(self, model: nn.Module) -> None:
        self._model = weakref.ref(model)
        self.units = units_of(model)
        self.quiet = False
        self._divide_factor = next((each.group.gradient_divide_factor for each in self.units), None)
        self._slots: dict[int, tuple[Slot, ...]] = {}
        self._use: Callable[[Iterable[Slot]], None] | None = None
        self._undo: list[Callable[[], None]] = []

    def wraps(self, parallel: DistributedDataParallel) -> bool:  # noqa: ARG002
        """DistributedDataParallel around it would sum gradients; see ``ModelWrapper``."""
        return False

    def buckets(self, parameters: Mapping[str, nn.Parameter]) -> Buckets:
        """Return ``fully_shard``'s own rule: one all-reduce for each unit; see ``ModelWrapper``."""
        units = {id(each): number for number, unit in enumerate(self.units) for each in unit.parameters}
        unit_of = {name: units.get(id(parameter)) for name, parameter in parameters.items()}

        def by_unit(gradients: Sequence[GradientSize]) -> list[list[GradientSize]]:
            found: dict[tuple[int | None, str], list[GradientSize]] = {}
            for gradient in reversed(gradients):
                found.setdefault((unit_of[gradient.name], gradient.dtype), []).append(gradient)
            return list(found.values())

        return by_unit

    def watch(self, slots: Mapping[nn.Parameter, Slot], use: Callable[[Iterable[Slot]], None]) -> bool:
        """Announce the parameters of a unit that is about to be gathered; see ``ModelWrapper``."""
        self._use = use
        self._slots = {
            id(unit.group): tuple(slots[each] for each in unit.parameters if each in slots)
            for unit in self.units
        }
        return True

    def sharing(self) -> list[torch.Tensor]:
        """Return the padded shards, and what they are views of; see ``ModelWrapper``."""
        padded = [each._sharded_param_data for unit in self.units for each in unit.group.fsdp_params]
        parts = [local_part(parameter) for unit in self.units for parameter in unit.parameters]
        bases = {id(each._base): each._base for each in [*padded, *parts] if each._base is not None}
        return [*padded, *bases.values()]

    def reshard(self) -> None:
        """Make the model show its sharded parameters, which it does not do after only a forward pass."""
        for unit in self.units:
            unit.group._to_sharded()

    def stand_aside(self) -> None:
        """Make every unit keep its shard as the reduce-scatter leaves it."""
        for unit in self.units:
            group = unit.group
            self._undo += [
                _leave_out_replicas(group),
                _replace(group, "post_backward", _Local(self, group)),
                _replace(group, "unshard", _Announced(self, group)),
            ]

    def close(self) -> None:
        """Make every unit sum over its replicas again, if it did before."""
        undo, self._undo = self._undo, []
        for each in undo:
            each()
        self._slots, self._use = {}, None

    def announce(self, group: Any) -> None:
        """Finish the updates that a unit's parameters wait for."""
        use, slots = self._use, self._slots.get(id(group), ())
        if use is None or not slots:
            return
        pending = any(slot.fused.pending for slot in slots)
        use(slots)
        if pending and group.device.type != "cpu" and hasattr(group.comm_ctx, "all_gather_stream"):
            # Gathers are queued in other streams, which waited for this stream when the forward pass began.
            event = group.device_handle.Event()
            event.record()
            group._wait_all_gather_streams_on_event(event)

    def refuse_changes(self) -> None:
        """Check that settings with an effect on the sum have not changed.

        Raises
        ------
        InvalidUse
            If one has; the message names it.
        """
        for unit in self.units:
            if unit.group._all_reduce_hook is not None:
                raise InvalidUse(f"{unit.name}: set_all_reduce_hook() after PACE was attached: {_HOOKED}")
            if unit.group.gradient_divide_factor != self._divide_factor:
                raise InvalidUse(
                    f"{unit.name}: the factor that gradients are divided by has changed: attach again after"
                    " set_gradient_divide_factor()"
                )

    @property
    def averages(self) -> bool:
        """Whether replicas are averaged. With a factor set by the user torch sums them."""
        return self._divide_factor is None

    def replicas(self) -> dist.ProcessGroup | None:
        """Return the ranks that hold the same shards; None if the mesh does not tell.

        Raises
        ------
        InvalidOptions
            If these ranks are not the same for all units.
        """
        found = [getattr(unit.group.mesh_info, "replicate_process_group", None) for unit in self.units]
        members = {None if each is None else tuple(dist.get_process_group_ranks(each)) for each in found}
        if len(members) > 1:
            raise InvalidOptions(
                "fully_shard was called with different meshes: all units need the same replicas, and some are"
                f" on ranks {' and others on '.join(sorted(str(each) for each in members))}"
            )
        return found[0] if found else None

    def compression(self) -> Compression:
        """Return the compression for torch's reduce_dtype, if that is narrower than the parameters."""
        narrow = {_COMPRESSIONS.get(dtype, "none") for unit in self.units for dtype in _reduced(unit)}
        return narrow.pop() if len(narrow) == 1 else "none"

    def refuse_unfit(self, optimizer: torch.optim.Optimizer) -> None:
        """Check that the runtime trains this model and optimizer as ``fully_shard`` does.

        Raises
        ------
        InvalidUse
            If it does not; the message says why and what to do.
        """
        model = self._model()
        assert model is not None
        sharded = {parameter for unit in self.units for parameter in unit.parameters}
        updated = {parameter for group in optimizer.param_groups for parameter in group["params"]}
        named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
        whole = [name for name, parameter in named.items() if parameter not in sharded]
        others = [name for name, each in named.items() if each in sharded and each not in updated]
        details = [each for unit in self.units for each in unit.group.fsdp_params]
        reasons = {
            f"a hook for all-reduces is set: {_HOOKED}": (
                any(unit.group._all_reduce_hook is not None for unit in self.units)
            ),
            "parameters are offloaded to the CPU (offload_policy), where gradients arrive later": (
                any(each.offload_to_cpu for each in details)
            ),
            "parameters are sharded in other ways too (tensor parallelism)": (
                any(each.is_dtensor for each in details)
            ),
            f"it does not shard {_some(whole)}, whose gradients nobody sums: shard them, or freeze them by"
            " requires_grad_(False)": (bool(whole)),
            "it sums gradients of parameters that the optimizer does not update, though another one may:"
            f" {_some(others)}; freeze them by requires_grad_(False), or have one optimizer for all": (
                bool(others)
            ),
            "gradients are divided by different factors in different modules": (
                any(unit.group.gradient_divide_factor != self._divide_factor for unit in self.units)
            ),
            "reduce_dtype is wider than the parameters', so gradients would be rounded before replicas are"
            " summed: keep the parameters in reduce_dtype and give param_dtype for compute": (
                any(_sums_wider(unit) for unit in self.units)
            ),
            "hooks are registered on accumulated gradients, and would see those of one replica": (
                any(_hooked(parameter) for parameter in sharded)
            ),
        }
        if found := [reason for reason, holds in reasons.items() if holds]:
            raise InvalidUse(f"fully_shard: {'; '.join(found)}")


_HOOKED = "it would be given the shard of one replica, or sum a second time"


class _Local:
    """Wraps the end of a unit's backward pass, in which torch uses gradients of this replica only."""

    def __init__(self, model_wrapper: FullyShardWrapper, group: Any) -> None:
        self._model_wrapper = model_wrapper
        self._own: Callable[..., None] = group.post_backward

    def __call__(self, *arguments: Any) -> None:
        model_wrapper = self._model_wrapper
        flags = {unit.group.all_reduce_grads for unit in model_wrapper.units}
        if len(flags) > 1:
            raise InvalidUse(
                "set_requires_all_reduce() differs between modules: call it on the outermost one, for all"
            )
        model_wrapper.quiet = not flags.pop()
        with without_gates():
            self._own(*arguments)


class _Announced:
    """Wraps the start of a unit's gather, which may be ahead of the unit's use."""

    def __init__(self, model_wrapper: FullyShardWrapper, group: Any) -> None:
        self._model_wrapper = model_wrapper
        self._group = weakref.ref(group)
        self._own: Callable[..., None] = group.unshard

    def __call__(self, *arguments: Any, **named: Any) -> None:
        group = self._group()
        if group is not None:
            self._model_wrapper.announce(group)
        self._own(*arguments, **named)


def _replace(group: Any, name: str, method: Callable[..., None]) -> Callable[[], None]:
    setattr(group, name, method)

    def put_back() -> None:
        if vars(group).get(name) is method:
            delattr(group, name)

    return put_back


def _leave_out_replicas(group: Any) -> Callable[[], None]:
    """Remove a unit's replicas from its mesh data; return a function that restores them."""
    before, after_forward = group.mesh_info, group.post_forward_mesh_info
    if getattr(before, "replicate_mesh_dim", None) is None:
        return lambda: None
    from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

    alone = FSDPMeshInfo(before.mesh, shard_mesh_dim=before.shard_mesh_dim)
    if hasattr(before, "reduce_scatter_process_group"):  # from torch 2.13 on
        alone.reduce_scatter_process_group = before.reduce_scatter_process_group
    group.mesh_info = alone
    if after_forward is before:  # whether it is the same decides how the unit is sharded after use
        group.post_forward_mesh_info = alone

    def give_back() -> None:
        group.mesh_info = before
        if group.post_forward_mesh_info is alone:
            group.post_forward_mesh_info = before

    return give_back


def _reduced(unit: Unit) -> set[torch.dtype | None]:
    """Return the dtypes in which torch sums a unit's gradients, if they are narrower than the parameters'."""
    policy = unit.group.mp_policy
    found: set[torch.dtype | None] = set()
    for parameter in unit.parameters:
        if parameter.requires_grad:
            dtype = policy.reduce_dtype or policy.param_dtype or parameter.dtype
            found.add(dtype if dtype.itemsize < parameter.dtype.itemsize else None)
    return found


def _sums_wider(unit: Unit) -> bool:
    wanted = unit.group.mp_policy.reduce_dtype
    trained = [parameter.dtype for parameter in unit.parameters if parameter.requires_grad]
    return wanted is not None and any(wanted.itemsize > dtype.itemsize for dtype in trained)


def _hooked(parameter: nn.Parameter) -> bool:
    return bool(getattr(parameter, "_post_accumulate_grad_hooks", None))


def _some(names: list[str]) -> str:
    return f"{', '.join(names[:5])}{', ...' if len(names) > 5 else ''}"
