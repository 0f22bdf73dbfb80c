"""An update on its way: pushed, held by its host, committed, and its ticket ended."""

from typing import Annotated, Literal

from pydantic import Field

from pace.documents.base import Document
from pace_fabric.runtime.update_records import Amount, CommitMember, Count, HeldUpdate, Text


class PushCall(Document):
    """A worker pushes what the transfer of the same number carries; with a round, to a reduction."""

    kind: Literal["push"] = "push"
    number: Count
    update: HeldUpdate
    round: Text | None = None
    members: Count = 0


class UpdateNotice(Document):
    """A worker has pushed an update to its daemon."""

    kind: Literal["update"] = "update"
    update: HeldUpdate


class CommitOrder(Document):
    """Apply `key` to the model.

    Attributes
    ----------
    scaled
        Whether `key` is a sum of members times factors; otherwise it is one member as pushed.
    exact
        Whether `key` is the two sums that make a step of every member.
    planned_s, arrived_s
        When it was to arrive, and when it did, on the scheduler's clock.
    delay_bound
        The last guard: members whose delay would reach it are refused, and with them the commit.
    """

    kind: Literal["commit"] = "commit"
    number: Count
    key: Text
    members: Annotated[tuple[CommitMember, ...], Field(min_length=1)]
    scaled: bool
    exact: bool = False
    planned_s: Amount
    arrived_s: Amount
    delay_bound: Count | None = None


class CommitNotice(Document):
    """The server or the replica has applied a commit; `expired` are updates that it refused to."""

    kind: Literal["committed"] = "committed"
    number: Count
    version: Count
    history_norm: Amount
    expired: tuple[Text, ...] = ()


class TicketOrder(Document):
    """Outcome of an update; with `release`, the host need not keep it any longer."""

    kind: Literal["ticket"] = "ticket"
    update: Text
    outcome: Literal["committed", "dropped", "failed"]
    version: Count | None = None
    delay: Count | None = None
    reason: str = ""
    witness: tuple[Text, ...] = ()


class ReleaseOrder(Document):
    """The replica has these updates: their hosts need not keep them."""

    kind: Literal["release"] = "release"
    updates: tuple[Text, ...]


CommitMessage = PushCall | UpdateNotice | CommitOrder | CommitNotice | TicketOrder | ReleaseOrder
