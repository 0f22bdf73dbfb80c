"""Groups and rounds: who joins, stays and leaves, states for newcomers, and weighted means."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Count, HeldUpdate, Text


class GroupTerms(Document):
    """What all members of a group have to say alike.

    Attributes
    ----------
    members
        How many are there at the beginning, if no deadline is over before.
    quorum
        How many have to take part in a round.
    deadline_s
        How long a round waits for absent members, from the first that takes part on; None for ever.
    """

    members: Annotated[int, Field(gt=0, lt=1 << 16)]
    quorum: Annotated[int, Field(gt=0, lt=1 << 16)]
    deadline_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class MembershipNotice(Document):
    """A worker wants to join a group, is a member of it, or has left.

    Attributes
    ----------
    rounds
        Of a worker that joins: how many rounds its state contains. Of a member: number of its next round.
    """

    kind: Literal["member"] = "member"
    group: Text
    member: Text
    event: Literal["join", "stay", "leave"]
    terms: GroupTerms
    rounds: Count = 0


class AdmissionOrder(Document):
    """A worker that wanted to join a group is a member now, or why it cannot be.

    Attributes
    ----------
    round
        Number of its first round.
    key
        The state of the others before that round; None if the group begins.
    """

    kind: Literal["admit"] = "admit"
    group: Text
    member: Text
    round: Count = 0
    key: Text | None = None
    reason: str = ""


class StateNotice(Document):
    """A member's state is in the host's store, for newcomers to its group."""

    kind: Literal["state"] = "state"
    group: Text
    member: Text
    round: Count
    key: Text
    size_bytes: Count


class StateOrder(Document):
    """A member is to give its state before a round, for newcomers."""

    kind: Literal["give-state"] = "give-state"
    group: Text
    member: Text
    round: Count


class ReductionNotice(Document):
    """A worker takes part in a weighted mean.

    Attributes
    ----------
    members
        How many take part in a round of fixed members.
    update
        None if the worker only takes the mean.
    group, member
        Group whose round it is, and the worker's name in it; None for a round of fixed members.
    """

    kind: Literal["reduce"] = "reduce"
    round: Text
    members: Annotated[int, Field(gt=0, lt=1 << 16)] = 1
    update: HeldUpdate | None = None
    group: Text | None = None
    member: Text | None = None


class RoundCall(Document):
    """A member takes part in a round of its group.

    Attributes
    ----------
    update
        What the transfer of the same number carries; None to take the mean only.
    """

    kind: Literal["round"] = "round"
    number: Count
    group: Text
    member: Text
    round: Count
    update: HeldUpdate | None = None


class JoinCall(Document):
    """A worker wants to be a member of a group; the answer, and a state if there is one, have its number."""

    kind: Literal["join"] = "join"
    number: Count
    group: Text
    member: Text
    terms: GroupTerms
    rounds: Count = 0


class LeaveCall(Document):
    """A worker leaves a group."""

    kind: Literal["leave"] = "leave"
    group: Text
    member: Text


class StateCall(Document):
    """A member gives its state before a round, in the transfer of the same number."""

    kind: Literal["state-of"] = "state-of"
    number: Count
    group: Text
    member: Text
    round: Count


class GroupAnswer(Document):
    """The answer to a call of a group, unless it is the transfer of this number.

    Attributes
    ----------
    round
        Number of the round that the worker is admitted to.
    missed
        Whether the worker is no longer in the group, and may join it again.
    """

    kind: Literal["group-answer"] = "group-answer"
    number: Count
    round: Count = 0
    reason: str = ""
    missed: bool = False


GroupMessage = (
    MembershipNotice
    | AdmissionOrder
    | StateNotice
    | StateOrder
    | ReductionNotice
    | RoundCall
    | JoinCall
    | LeaveCall
    | StateCall
    | GroupAnswer
)
