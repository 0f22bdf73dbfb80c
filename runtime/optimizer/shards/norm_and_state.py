"""Clipping and access to the optimizer's whole state, for sharded and other updates."""

import json
from abc import abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from pace.errors import InvalidUse
from pace.runtime.event_log import log
from pace.runtime.gates.gated_state import GatedState, gate_state, held_by_others
from pace.runtime.gates.gradient_gates import without_gates
from pace.runtime.gates.optimizer_methods import step_was_replaced
from pace.runtime.optimizer.live_wrappers import weakly
from pace.runtime.optimizer.rounds import Rounds
from pace.runtime.optimizer.shards.checkpoint import ShardedState
from pace.runtime.optimizer.shards.clipping import check_norms
from pace.runtime.optimizer.shards.shard_memory import why_not_in_shards
from pace.runtime.optimizer.shards.sharded_rounds import ShardedRounds
from pace.runtime.optimizer.stand_in import StandIn
from pace.runtime.transports.transport import Transport


class NormAndState(StandIn):
    """A stand-in whose gradients can be clipped, and whose state may be spread over the ranks."""

    parameters_by_name: Mapping[str, nn.Parameter]
    model: nn.Module
    _transport: Transport
    _rounds: Rounds
    _max_grad_norm: float | None
    _told_of_norm = False
    _last_norm: torch.Tensor | None = None
    _state_is_held = False

    @abstractmethod
    def _refuse_closed(self) -> None:
        """Raise when the wrapper was closed."""

    @property
    @abstractmethod
    def rank(self) -> int:
        """The rank of this process."""

    def clip_grad_norm_(
        self, max_norm: float, norm_type: float = 2.0, *, error_if_nonfinite: bool = False
    ) -> torch.Tensor:
        """Clip all gradients together by their norm, between the backward pass and ``step()``.

        The result is that of ``torch.nn.utils.clip_grad_norm_`` for the optimizer's parameters. With sharded
        updates ranks exchange only one number for it, and gradients are not gathered. Every rank must call
        it. If the norm is not finite, all ranks drop the gradients, and ``step()`` changes nothing. On a
        GPU, sharded updates decide this there, and the host waits neither here nor in ``step()``.

        Parameters
        ----------
        max_norm
            The largest norm after clipping.
        norm_type
            Order of the norm; infinity for the largest absolute value.
        error_if_nonfinite
            Whether to raise RuntimeError, as torch does, if the norm is not finite.

        Returns
        -------
        torch.Tensor
            The norm before clipping, the same on all ranks.

        Raises
        ------
        CommunicationFailed
            If an exchange failed or a peer is gone.
        InvalidUse
            If an argument is not a positive number, or inside ``no_sync()``.
        """
        self._refuse_closed()
        check_norms(max_norm, norm_type)
        if self._rounds.accumulating:
            raise InvalidUse("clip_grad_norm_ was called inside no_sync(): call it outside, before step()")
        norm = self._rounds.clip(float(max_norm), float(norm_type))
        self._tell_of_norm(norm)
        if error_if_nonfinite and not norm.isfinite():
            raise RuntimeError(
                f"the total norm of order {norm_type} of the gradients is {float(norm)}, not finite"
            )
        wide = max(
            (slot.parameter.dtype for slot in self._rounds.slots), key=lambda d: d.itemsize, default=None
        )
        return norm.to(next((slot.view.device for slot in self._rounds.slots), "cpu"), wide, copy=True)

    def _clip_at_step(self) -> None:
        if self._max_grad_norm is not None:
            self._tell_of_norm(self._rounds.clip_at_step(self._max_grad_norm))

    def _give_state(self, asked: list[int]) -> bool:
        return self._rounds.give_state(asked)

    def _tell_of_norm(self, norm: torch.Tensor) -> None:
        if not norm.is_cpu:  # told in the next step, before which the host waits for it
            last, self._last_norm = self._last_norm, norm.to("cpu", non_blocking=True)
            if last is None:
                return
            norm = last
        if not norm.isfinite() and not self._told_of_norm and self.rank == 0:
            self._told_of_norm = True
            log.warning(
                "pace.step_skipped", norm=float(norm), consequence="parameters stay as they are; logged once"
            )

    # The optimizer's state.

    def state_dict(self) -> dict[str, Any]:
        """Return the optimizer's whole state, after every pending update, like a plain optimizer.

        With sharded updates this rank collects the state from the other ranks, whatever they are doing.
        """
        self.finish_updates()
        with self._rounds.whole_state() as gathered:
            if not gathered:
                return self.optimizer.state_dict()
            with without_gates():
                return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the optimizer's whole state, after every pending update; from any number of ranks."""
        self.optimizer.load_state_dict(state_dict)

    def _before_loading(self, _optimizer: torch.optim.Optimizer, _state_dict: dict[str, Any]) -> None:
        self.finish_updates()

    def _after_loading(self, _optimizer: torch.optim.Optimizer) -> None:
        gate_state(self.optimizer, weakly(self._make_state_current))
        self._rounds.take_state()

    def _gate_state(self, *, replaced: bool = True) -> None:
        """Make reads of the optimizer's state wait for pending updates, also after it was replaced."""
        optimizer = self.optimizer
        if isinstance(vars(optimizer)["state"], GatedState):
            return
        if held_by_others(optimizer):
            if not self._state_is_held and self.rank == 0:
                log.warning(
                    "pace.state_held",
                    consequence="the training loop keeps the dictionary of optimizer.state, so updates are"
                    " applied in step(): use optimizer.state itself to have them overlap",
                )
            self._state_is_held = True
            if isinstance(self._rounds, ShardedRounds):
                raise InvalidUse(
                    "the training loop keeps the dictionary of optimizer.state, but with sharded updates no"
                    " rank has the whole state: read optimizer.state itself each time, or use"
                    " AllReduce(sharding='off')"
                )
            return
        self._state_is_held = False
        gate_state(optimizer, weakly(self._make_state_current))
        if replaced:
            self._rounds.take_state()

    def _make_state_current(self) -> None:
        self.finish_updates()
        self._rounds.lend_state()

    def _find_held_state(self, parameters: Sequence[torch.Tensor]) -> Collection[torch.Tensor]:
        """Return those of the given parameters whose optimizer state is referenced by user code."""
        state = vars(self.optimizer)["state"]
        return state.held_elsewhere(parameters) if isinstance(state, GatedState) else parameters

    def _why_whole(self) -> str | None:
        """Return why updates must not be sharded from now on, or None; the same on all ranks."""
        mine = why_not_in_shards(self.parameters_by_name, self.model)
        if mine is None and step_was_replaced(self.optimizer):
            mine = "the optimizer's step was replaced after it was wrapped"
        if mine is None and self._find_held_state(list(self.parameters_by_name.values())):
            mine = "the training loop keeps parts of optimizer.state, and no rank would have the whole state"
        said = [json.loads(each) for each in self._transport.gather(json.dumps(mine).encode())]
        return next((f"rank {rank}: {each}" for rank, each in enumerate(said) if each is not None), None)

    def sharded_state(self) -> ShardedState:
        """Return a copy of this rank's part of the optimizer's state, for torch.distributed.checkpoint.

        Pass it to ``dcp.save`` or ``dcp.load`` on every rank. ``dcp.load`` loads state and hyper-parameters
        into this optimizer; the number of ranks may differ from that of the checkpoint.

        Raises
        ------
        InvalidUse
            If updates are not sharded.
        """
        self.finish_updates()
        if not isinstance(self._rounds, ShardedRounds):
            raise InvalidUse("updates are not sharded, so every rank has the whole state: use state_dict()")
        return self._rounds.sharded_state()

    @property
    def state(self) -> Any:
        """The state of the user's optimizer; a read of it waits for pending updates.

        With sharded updates, a read collects the whole state on this rank, where it stays until the next
        ``step()``. Changes of it take effect.
        """
        return self.optimizer.state

    @state.setter
    def state(self, state: Any) -> None:
        self.finish_updates()
        self.optimizer.state = state  # gated by the next step()
