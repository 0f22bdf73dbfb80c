"""PACE under ``fully_shard``: planned settings of FSDP2, and sums of shards over their replicas (HSDP).

``apply`` gives a model planned settings; torch's own collectives follow them. ``attach`` is for meshes of two
dimensions.

Torch gathers and reduce-scatters within a replica, as without PACE. PACE all-reduces each shard of a gradient
among the ranks that hold the same shard in other replicas. Its time-out applies to torch's collectives, too.
"""

import contextlib
import datetime
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule

from pace.documents.base import refuse_other
from pace.documents.graph.fsdp2_settings import Fsdp2Settings, load_fsdp2_settings
from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse
from pace.runtime.control.options import WrapperOptions
from pace.runtime.control.plan_source import PlanSource
from pace.runtime.entry_point import TrainingOptions, connecting_timeout_s, prepare, refuse_unknown_arguments
from pace.runtime.gates.fsdp2_settings import shard_by_settings
from pace.runtime.gates.fully_sharded import FullyShardWrapper
from pace.runtime.gates.inner_collectives import guard_collectives, shard_ranks
from pace.runtime.optimizer.rounds import Rounds
from pace.runtime.optimizer.start import released_on_failure
from pace.runtime.optimizer.wrapped_model_optimizer import WrappedModelOptimizer, wrapper_of
from pace.runtime.options import AllReduce, Plan, Replanning, Tune
from pace.runtime.torch import connect
from pace.runtime.transports.job_store import open_stores
from pace.runtime.transports.peers import Peers, Progress, Store
from pace.runtime.transports.torch_threads import Sockets, call_within
from pace.runtime.transports.torch_versions import APPLY, HSDP, require_torch
from pace.runtime.transports.transport import Transport, control_message

__all__ = [
    "AllReduce",
    "Fsdp2Settings",
    "Plan",
    "Replanning",
    "ReplicaOptimizer",
    "Tune",
    "apply",
    "attach",
    "attached",
    "load_fsdp2_settings",
]


def apply(
    model: nn.Module,
    settings: Fsdp2Settings | str | Path,
    *,
    blocks: Sequence[nn.Module] | None = None,
    **fully_shard_options: Any,
) -> list[FSDPModule]:
    """Shard a model by settings that ``pace optimize GRAPH --fsdp2`` planned; the weights do not change.

    Call it in the place of ``fully_shard``, before the optimizer is made. On a model that is sharded already
    it sets only how far ahead units are gathered, and what follows for the gradients. Every rank must make
    the same call.

    Parameters
    ----------
    model
        The whole model.
    settings
        The settings, or the path of the file that holds them.
    blocks
        The transformer blocks in forward order; by default the largest list of modules of one type.
    fully_shard_options
        For every call of ``fully_shard``, such as ``mesh`` and ``mp_policy``.

    Returns
    -------
    The units in forward order, without the model itself.

    Raises
    ------
    InvalidOptions, InvalidUse, InvalidSchedule
        If the settings do not fit the model, or the installed torch lacks one; nothing is set then.
    """
    require_torch(APPLY)
    if isinstance(settings, str | Path):
        settings = load_fsdp2_settings(settings)
    refuse_other(settings, Fsdp2Settings, InvalidOptions)
    if not isinstance(model, nn.Module):
        raise InvalidOptions(f"model is of type {type(model).__name__}; a torch.nn.Module is needed")
    return shard_by_settings(model, settings, blocks, fully_shard_options)


def attach(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    replicas: dist.ProcessGroup | None = None,
    **training: Unpack[TrainingOptions],
) -> "ReplicaOptimizer":
    """Let PACE sum the gradients of a model in ``fully_shard`` over its replicas, without a barrier.

    The training loop stays unchanged. It keeps the same model and optimizer, but the optimizer's ``step`` and
    ``zero_grad`` become PACE's. Every rank must make the same call, not between a forward pass and its
    backward pass.

    Parameters
    ----------
    model
        The outermost module that ``fully_shard`` was called with, on a mesh of replicas and shards, or what
        ``torch.compile`` made of it.
    optimizer
        The optimizer of all parameters that require gradients; they are DTensors.
    replicas
        The ranks that hold the same shards as this one, where ``fully_shard`` was called with a mesh of
        shards alone: ``mesh["replicas"].get_group()``.
    communication
        ``AllReduce(compression=...)``; by default with the dtype in which ``fully_shard`` would sum replicas,
        where that is half of the parameters': what `mp_policy` says.
    plan, mode, timeout_s
        The options of ``pace.runtime.torch.DistributedOptimizer``. In a schedule, sizes are those of shards,
        padded to the largest, and workers are replicas.

    Returns
    -------
    The wrapper, for ``report()``, ``synchronize()``, ``clip_grad_norm_()`` and ``close()``. The loop may use
    it in the optimizer's place, and need not keep it.

    Raises
    ------
    InvalidOptions, InvalidUse
        If the arguments, the optimizer or the model do not fit; the message has the reason.
    ScheduleMismatch
        If the schedule is for another model or number of replicas, or replicas have different ones.
    """
    require_torch(HSDP)
    refuse_unknown_arguments(attach, training)
    inner = getattr(model, "_orig_mod", model)
    if not isinstance(inner, nn.Module):
        raise InvalidOptions(f"model is of type {type(inner).__name__}; a torch.nn.Module is needed")
    if wrapper_of(inner) is not None:
        raise InvalidUse("PACE is already attached to this model: close() that wrapper first")
    model_wrapper = FullyShardWrapper(inner)
    if not model_wrapper.units:
        raise InvalidOptions(
            "fully_shard was called with no module of the model: for a model without it use"
            " pace.runtime.torch.DistributedOptimizer"
        )
    training.setdefault("communication", AllReduce(compression=model_wrapper.compression()))
    return ReplicaOptimizer(optimizer, inner, model_wrapper, _replicas(model_wrapper, replicas), training)


def attached(model: nn.Module) -> "ReplicaOptimizer | None":
    """Return the wrapper of a model to which PACE is attached, else None."""
    wrapper = wrapper_of(model)
    return wrapper if isinstance(wrapper, ReplicaOptimizer) else None


def _replicas(model_wrapper: FullyShardWrapper, given: dist.ProcessGroup | None) -> dist.ProcessGroup:
    known = model_wrapper.replicas()
    if known is None and given is None:
        raise InvalidOptions(
            "fully_shard was called with a mesh of one dimension, which does not tell who holds the same"
            " shards: call it with a mesh of replicas and shards, or give replicas=. Without "
            "replicas, `apply` sets FSDP2 up"
        )
    if known is not None and given is not None:
        members = [dist.get_process_group_ranks(each) for each in (known, given)]
        if members[0] != members[1]:
            raise InvalidOptions(
                f"replicas are ranks {members[1]}, but the model's mesh has {members[0]}: leave replicas out"
            )
    found = given if known is None else known
    assert found is not None
    return found


def _look_at_whole_mesh(transport: Transport, model_wrapper: FullyShardWrapper, *, timeout_s: float) -> None:
    """Let errors name a failed rank of the whole mesh, not only of this rank's replicas."""
    replicas = transport.peers
    if replicas is None:
        return
    shards = transport.gather(json.dumps(sorted(shard_ranks(model_wrapper.units))).encode())
    members = sorted({rank for each in shards for rank in json.loads(each)})
    rank = dist.get_rank()
    timeout = datetime.timedelta(seconds=timeout_s)
    name = f"mesh/{'-'.join(map(str, members))}"
    stores = call_within(
        timeout_s, lambda: open_stores(name, members.index(rank), timeout), name="pace.store"
    )
    transport.peers = MeshPeers(stores.peers, members, rank, replicas=replicas, sockets=stores.sockets)


class ReplicaOptimizer(WrappedModelOptimizer):
    """The wrapper that ``attach`` returns; it lives as long as the model, or until ``close()``.

    Ranks are counted among the replicas of a shard.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        model: nn.Module,
        model_wrapper: FullyShardWrapper,
        replicas: dist.ProcessGroup,
        training: TrainingOptions,
    ) -> None:
        self._closed = True  # until it is complete
        self._shards = model_wrapper
        model_wrapper.reshard()
        transport = connect(model, training, replicas)
        with released_on_failure(transport):
            _look_at_whole_mesh(transport, model_wrapper, timeout_s=connecting_timeout_s(training))

        def checked() -> tuple[WrapperOptions, PlanSource]:
            model_wrapper.refuse_unfit(optimizer)
            return prepare(transport, training, op="average" if model_wrapper.averages else "sum")

        super().__init__(optimizer, model, model, model_wrapper, transport=transport, prepare=checked)
        self._undo.append(guard_collectives(model_wrapper.units, self._timeout_s, self._inner_collective))

    def step(self, closure: Any = None) -> Any:
        """Take one optimizer step; see ``WrappedModelOptimizer``."""
        self._shards.refuse_changes()
        return super().step(closure)

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip by the norm over all shards: torch's own function, whose failures here name the rank at fault.

        Raises
        ------
        CommunicationFailed
            If the ranks could not sum gradients or their norm.
        RuntimeError
            If the norm is not finite, with `error_if_nonfinite`.
        """
        self._refuse_closed()
        parameters = list(self.parameters_by_name.values())
        # Read first: sums over replicas have errors of their own.
        gradients = [each.grad for each in parameters if each.grad is not None]
        with self._inner_collective("the norm of all gradients"):
            finite = not error_if_nonfinite or bool(
                _whole(nn.utils.get_total_norm(gradients, norm_type)).isfinite()
            )
        if not finite:
            raise RuntimeError(f"the norm of all gradients, of order {norm_type:g}, is not finite")
        with self._inner_collective("the norm of all gradients"):
            return _whole(nn.utils.clip_grad_norm_(parameters, max_norm, norm_type))

    @contextlib.contextmanager
    def _inner_collective(self, what: str) -> Iterator[None]:
        """Convert an error of torch's own collectives to one that names the failed rank."""
        try:
            with control_message(dist.get_rank(), dist.get_world_size(), self._explain_failure, what):
                yield
        except CommunicationFailed as failure:
            self._rounds.engine.abandon(failure)
            raise

    def _install(self, before: Rounds | None) -> Rounds:
        self._shards.reshard()  # gates are put on what the model shows
        return super()._install(before)

    _remedy_of_waits = "report().read_wait_s says how long"

    def _speaks(self) -> bool:
        return dist.get_rank() == 0


def _whole(norm: Any) -> torch.Tensor:
    whole: torch.Tensor = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    return whole


class MeshPeers(Peers):
    """The signs of life of all ranks of a mesh. Requests between ranks go to the replicas only.

    Under ``fully_shard`` a rank sums gradients with its replicas, and also waits for the ranks of its shards.
    A lost rank with another replica and another shard stops it too, because some of these ranks wait for the
    lost one.

    Parameters
    ----------
    store
        The store shared by all ranks of the mesh; no other thread uses it.
    members
        The ranks of the mesh, including this one, as numbered in the whole job.
    rank
        This rank's number in the whole job.
    replicas
        The transport's peers: the ranks with which this one sums gradients.
    sockets
        The store's connections.
    """

    def __init__(
        self, store: Store, members: Sequence[int], rank: int, *, replicas: Peers, sockets: Sockets
    ) -> None:
        self._replicas = replicas
        super().__init__(
            store,
            members.index(rank),
            len(members),
            keeper=members.index(0) if 0 in members else None,
            names=[f"rank {each} of the whole job" for each in members],
            sockets=sockets,
        )

    def follow(self, progress: Progress, answer: Callable[[int], bool] | None = None) -> None:
        """Report this rank's progress to the whole mesh, and answer its replicas; see ``Peers``."""
        super().follow(progress)
        self._replicas.follow(progress, answer)

    def follow_state(self, give: Callable[[list[int]], bool]) -> None:
        """Answer replicas that ask for the optimizer's state; see ``Peers``."""
        self._replicas.follow_state(give)

    def ask(self, turn: int) -> None:
        """Ask the replicas; see ``Peers``."""
        self._replicas.ask(turn)

    def ask_for_state(self, number: int, step: int, *, last: bool) -> None:
        """Ask the replicas; see ``Peers``."""
        self._replicas.ask_for_state(number, step, last=last)

    def close(self, reason: str | None = None, *, failed: bool = False) -> None:
        """Say goodbye to the mesh and to the replicas; see ``Peers``."""
        self._replicas.leave(reason, failed=failed)
        super().close(reason, failed=failed)
        self._replicas.close(reason, failed=failed)

    def lose_store(self) -> None:
        """Do not wait for either store, which are on one host; see ``Peers``."""
        super().lose_store()
        self._replicas.lose_store()

    def release(self) -> None:
        """Release both stores."""
        super().release()
        self._replicas.release()
