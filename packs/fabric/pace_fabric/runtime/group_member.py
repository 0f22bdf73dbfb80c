"""A worker's part in a group: join it, take part in its rounds, give newcomers a state, leave."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pace.errors import CommunicationFailed, InvalidOptions, InvalidUse, RoundMissed
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.client_answers import DaemonAnswer
from pace_fabric.runtime.commit_log import Vector
from pace_fabric.runtime.formats.error_feedback import NarrowUpdate
from pace_fabric.runtime.formats.update_forms import dense_vector
from pace_fabric.runtime.local_members import key_of
from pace_fabric.runtime.messages import (
    GroupTerms,
    JoinCall,
    LeaveCall,
    RoundCall,
    StateCall,
    StateOrder,
)


class GroupMember:
    """A member of a group whose rounds go on when members are gone, and which newcomers may join.

    Every member makes the same calls. Only one thread may call.

    Parameters
    ----------
    group
        Name of the group.
    members
        How many the group begins with. More may join later.
    quorum
        How many have to take part in a round; all `members` unless given.
    deadline_s
        How long a round waits for absent members, from the first that takes part on. Whoever is absent then
        is no member any longer. None waits until their connection ends.
    give_state
        Returns what a newcomer needs to go on from here. It is called on another thread while ``mean`` waits,
        and returns the state as it was when ``mean`` was called.
    timeout_s
        How long a call waits before it raises; the client's limit unless given.

    Raises
    ------
    InvalidOptions
        When these do not fit one another.
    """

    def __init__(
        self,
        fabric: FabricClient,
        group: str,
        *,
        members: int,
        give_state: Callable[[], bytes],
        quorum: int | None = None,
        deadline_s: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        least = members if quorum is None else quorum
        if not 1 <= least <= members < 1 << 16:
            raise InvalidOptions(
                f"members is {members} and quorum {quorum}: 1 <= quorum <= members is needed"
            )
        if deadline_s is not None and not 0 < deadline_s < float("inf"):
            raise InvalidOptions(f"deadline_s is {deadline_s}: a positive number of seconds is needed")
        if not group or len(group) > 100 or not group.isprintable():
            raise InvalidOptions(f"group is {group!r}: a printable name of at most 100 characters is needed")
        self._fabric, self._group, self._give_state = fabric, group, give_state
        self._terms = GroupTerms(members=members, quorum=least, deadline_s=deadline_s)
        self._timeout_s = timeout_s
        self._round = 0

    @property
    def round(self) -> int:
        """Number of the next round; 0 before ``join``, and after a round was missed."""
        return self._round

    def join(self, *, rounds: int = 0) -> bytes | None:
        """Become a member; return the others' state, or None if the group begins with this worker's own.

        A newcomer takes that state and then the mean of the open round, with ``mean(None)``.

        Parameters
        ----------
        rounds
            How many rounds this worker's state contains, for one that begins from a checkpoint. A group
            begins from the states with the most rounds, which have to be equal.

        Raises
        ------
        CommunicationFailed
            When this is not possible in time.
        """
        if rounds < 0:
            raise InvalidUse(f"rounds is {rounds}: at least 0 is needed")
        answer, number = self._fabric.ask()
        call = JoinCall(
            number=number,
            group=self._group,
            member=self._fabric.incarnation,
            terms=self._terms,
            rounds=rounds,
        )
        self._fabric.tell(call)
        self._wait(answer, number, f"membership in group {self._group}")
        if answer.incoming is not None:
            self._round = answer.incoming.intro.version
            return bytes(answer.incoming.data)
        assert answer.group is not None
        self._round = answer.group.round
        return None

    def mean(self, update: NDArray[np.float32] | NarrowUpdate | None, *, weight: float = 1.0) -> Vector:
        """Return the weighted mean of what all members in the next round give: the same bytes for all.

        Parameters
        ----------
        update
            None gives nothing and takes the mean only, as newcomers do. If all are in one format of 16 bits,
            so is the mean; if all are `int8`, it is bfloat16.

        Raises
        ------
        RoundMissed
            When the group went on without this worker, which may ``join`` again.
        CommunicationFailed
            When there is no mean in time. The call may be repeated.
        InvalidUse
            When the update is not finite, or this worker has not joined.
        """
        if not self._round:
            raise InvalidUse(f"a round of group {self._group} before join(): call join() first")
        held, data = None, None
        if update is not None:
            held, data = self._fabric.hold(update, 0, weight, "pseudo-gradient")
        answer, number = self._fabric.ask()
        call = RoundCall(
            number=number,
            group=self._group,
            member=self._fabric.incarnation,
            round=self._round,
            update=held,
        )
        self._fabric.on_state_order(self._group, lambda order: self._send_state(order, answer))
        try:
            self._fabric.tell(call, data, "" if data is None else key_of(call))
            self._wait(answer, number, f"the mean of round {self._round} of group {self._group}")
        finally:
            self._fabric.on_state_order(self._group, None)
        assert answer.incoming is not None
        self._round += 1
        return dense_vector(answer.incoming.data, answer.incoming.intro.form)

    def leave(self) -> None:
        """Leave the group; rounds do not wait for this worker from now on."""
        if self._round:
            self._round = 0
            self._fabric.tell(LeaveCall(group=self._group, member=self._fabric.incarnation))

    def _send_state(self, order: StateOrder, answer: DaemonAnswer) -> None:
        """Give newcomers this worker's state; on the reading thread, while ``mean`` waits."""
        if order.round != self._round:
            return
        try:
            state = self._give_state()
        except Exception as error:  # the call that waits raises it
            answer.reason = f"no state for newcomers: {type(error).__name__}: {error}"
            answer.event.set()
            return
        call = StateCall(
            number=self._fabric.next_number(),
            group=self._group,
            member=self._fabric.incarnation,
            round=self._round,
        )
        self._fabric.tell(call, state, key_of(call))

    def _wait(self, answer: DaemonAnswer, number: int, what: str) -> None:
        self._fabric.wait(answer, number, what, self._timeout_s)
        if answer.group is not None and answer.group.missed:
            self._round = 0
            raise RoundMissed(answer.group.reason)
        if answer.reason:
            raise CommunicationFailed(f"{what} is not available: {answer.reason}")
