"""DiLoCo's outer step where members come and go: with a quorum, a deadline, and state for newcomers."""

import io

import torch
from torch import nn

from pace.errors import InvalidUse, RoundMissed
from pace.runtime.event_log import log
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.formats.error_feedback import ErrorFeedback, NarrowUpdate
from pace_fabric.runtime.group_member import GroupMember
from pace_fabric.runtime.update_records import NumberFormat
from pace_sync.diloco.outer_row import MakeOuter, OuterRow, whole_model


class ElasticOuterStep:
    """The weighted mean of the members' changes moves an outer optimizer, the same for all members.

    The outer parameters are one row of float32, whatever the model's type. All members have the same bytes.

    Parameters
    ----------
    model
        Every member of a group that begins has equal parameters, or takes those of a checkpoint.
    make_outer
        Returns the outer optimizer of given parameters; SGD with Nesterov momentum in the paper
        (arXiv 2311.08105).
    members, quorum, deadline_s
        As of a `GroupMember`.
    form
        Number format in which changes are sent; what it leaves out is added to the next change.
    """

    def __init__(
        self,
        model: nn.Module,
        make_outer: MakeOuter,
        fabric: FabricClient,
        *,
        members: int,
        quorum: int | None = None,
        deadline_s: float | None = None,
        name: str = "outer",
        form: NumberFormat = "float32",
    ) -> None:
        self._form = form
        self._outer = OuterRow(whole_model(model), make_outer)
        self._feedback = ErrorFeedback(form)
        self._member = GroupMember(
            fabric,
            name,
            members=members,
            quorum=quorum,
            deadline_s=deadline_s,
            give_state=self.state,
        )
        self.rounds = 0

    def join(self) -> bool:
        """Become a member; return whether as a newcomer, whose model is now that of the others.

        Raises
        ------
        CommunicationFailed
            When this is not possible in time.
        """
        while True:
            state = self._member.join(rounds=self.rounds)
            if state is None:
                self.rounds = self._member.round - 1
                return False
            self.load_state(state)
            try:
                self._move(self._member.mean(None))
                return True
            except RoundMissed:  # the state took longer than the deadline
                log.warning("pace.fabric_state_late", rounds=self.rounds)

    def step(self, *, weight: float = 1.0) -> bool:
        """End a round of local training; return whether the local change counted.

        If the group went on without this worker, it joins again: its model is that of the others then, and
        what it had changed is lost.

        Parameters
        ----------
        weight
            This member's share, for example the tokens that it has seen.
        """
        if not self._member.round:
            raise InvalidUse("step() before join(): the worker is in no group yet")
        change = self._outer.change()
        update = self._feedback.compress(change) if self._form != "float32" else change
        assert not isinstance(update, NarrowUpdate) or update.form == self._form
        try:
            mean = self._member.mean(update, weight=weight)  # type: ignore[arg-type]  # never sparse
        except RoundMissed:
            self.join()
            return False
        self._move(mean)
        return True

    def leave(self) -> None:
        """Leave the group; others do not wait for this worker from now on."""
        self._member.leave()

    def state(self) -> bytes:
        """Return the outer parameters, the outer optimizer and the number of rounds: a checkpoint."""
        saved = io.BytesIO()
        # Who loads it gives its model the outer one, which says anew what rounding leaves out.
        torch.save(self._outer.state_dict() | {"left_out": None, "rounds": self.rounds}, saved)
        return saved.getvalue()

    def load_state(self, state: bytes) -> None:
        """Go on from a checkpoint, before ``join``.

        Raises
        ------
        InvalidUse
            When it is of another model.
        """
        whole = torch.load(io.BytesIO(state), weights_only=True)
        self._outer.load_state_dict(whole)
        self.rounds = int(whole["rounds"])
        self._feedback = ErrorFeedback(self._form)
        self._outer.give()

    def _move(self, mean: Vector) -> None:
        self._outer.move(mean)
        self.rounds += 1
        self._outer.give()
