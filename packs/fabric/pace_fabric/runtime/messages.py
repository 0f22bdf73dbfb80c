"""Every message that a fabric's processes exchange: JSON documents, validated when they arrive.

Orders go from the scheduler to hosts, notices from hosts to the scheduler, and calls between a worker and the
daemon of its host. Times are seconds on the scheduler's clock; rates are bytes per second.
"""

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from pace.documents.base import Document, explain
from pace.wire.frames import WireFault
from pace_fabric.runtime.update_records import (
    Amount,
    CommitMember,
    Count,
    Finite,
    HeldUpdate,
    Momentum,
    NumberFormat,
    Text,
    UpdateForm,
)


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


class HostRegistration(Document):
    """A daemon introduces its host: where others reach it, which model it holds, which updates wait there.

    Attributes
    ----------
    digest
        SHA-256 of the model and its history: equal models need no snapshot.
    recent
        The last commits of a host with a model: update ids and the version afterwards.
    shard, shards
        Which part of a model a server holds, and into how many it is split.
    """

    kind: Literal["register"] = "register"
    host: Text
    address: Text
    port: Annotated[int, Field(gt=0, lt=1 << 16)]
    part: Literal["worker", "server", "replica"] = "worker"
    version: Count = 0
    model_bytes: Count = 0
    history_norm: Amount = 0.0
    digest: str = ""
    updates: tuple[HeldUpdate, ...] = ()
    recent: tuple[tuple[Text, Count], ...] = ()
    shard: Count = 0
    shards: Annotated[int, Field(ge=1, le=1024)] = 1


class WelcomeOrder(Document):
    """Answer to a daemon that registered; `progress_s` is the interval of reports of what has arrived."""

    kind: Literal["welcome"] = "welcome"
    progress_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    momentum: Momentum = 0.0
    network_state: str
    merge: Literal["sum", "weighted-mean"] = "sum"


class RefusalOrder(Document):
    """Why a daemon or a round cannot go on.

    Attributes
    ----------
    member
        The only member of the round for which it cannot; None for all on the host.
    missed
        Whether the member is no longer in its group, and may join it again.
    """

    kind: Literal["refused"] = "refused"
    reason: str
    round: Text | None = None
    member: Text | None = None
    missed: bool = False


class StatusCall(Document):
    """Somebody asks a scheduler what it does."""

    kind: Literal["ask-status"] = "ask-status"


class StatusAnswer(Document):
    """What a scheduler does, as JSON."""

    kind: Literal["status"] = "status"
    document: str


HostMessage = HostRegistration | WelcomeOrder | RefusalOrder | StatusCall | StatusAnswer


class TransferIntro(Document):
    """Precedes a transfer's blocks between hosts, or between a worker and its daemon."""

    kind: Literal["transfer"] = "transfer"
    transfer: Count
    key: Text
    size_bytes: Count
    version: Count = 0
    host: Text = "-"
    form: UpdateForm = "float32"


class TransferOrder(Document):
    """Send what is stored as `key` to another host; `once` forgets it afterwards."""

    kind: Literal["send"] = "send"
    transfer: Count
    key: Text
    host: Text
    address: Text
    port: Count
    rate: Amount | None = None
    once: bool = False


class RateOrder(Document):
    """Send to a host at most this fast from now on; None for no limit."""

    kind: Literal["rate"] = "rate"
    host: Text
    rate: Amount | None = None


class AdditionOrder(Document):
    """Store the sum of factors times parts, added in this order, in float32.

    Attributes
    ----------
    momentum
        With one, two sums are stored, one after the other: what the model moves by, and what the history
        becomes, when the parts are steps of their own with this momentum.
    form
        Number format of what is stored.
    """

    kind: Literal["add"] = "add"
    key: Text
    parts: Annotated[tuple[Text, ...], Field(min_length=1)]
    factors: tuple[Finite, ...]
    momentum: Momentum = 0.0
    form: NumberFormat = "float32"


class ForgetOrder(Document):
    """These keys are no longer needed."""

    kind: Literal["forget"] = "forget"
    keys: tuple[Text, ...]


class ArrivalNotice(Document):
    """A transfer has arrived, or a part of it: payload bytes so far, and what these took on the wire.

    Attributes
    ----------
    recent_bytes, seconds
        What arrived since the last notice of this transfer, or since its first block.
    """

    kind: Literal["arrived"] = "arrived"
    transfer: Count
    size_bytes: Count
    wire_bytes: Count
    recent_bytes: Count
    seconds: Amount
    part: bool = False


class FailureNotice(Document):
    """A transfer, or an addition, cannot be carried out."""

    kind: Literal["failed"] = "failed"
    transfer: Count
    reason: str


TransferMessage = (
    TransferIntro | TransferOrder | RateOrder | AdditionOrder | ForgetOrder | ArrivalNotice | FailureNotice
)


class ModelCall(Document):
    """A worker asks for a model of at least this version; the answer has its number."""

    kind: Literal["get"] = "get"
    number: Count
    at_least: Count = 0
    training: bool = True


class ModelWanted(Document):
    """Workers on the host wait for a model of at least this version: to train from it, or only to read it."""

    kind: Literal["want"] = "want"
    at_least: Count = 0
    training: Count = 1
    reading: Count = 0


class ComputingNotice(Document):
    """Versions of the models from which workers of the host compute; `delivered` is the key of the newest."""

    kind: Literal["computing"] = "computing"
    versions: tuple[Count, ...]
    delivered: str = ""


class SnapshotOrder(Document):
    """Store the model as it is now as `key`; `whole` adds what a replica needs."""

    kind: Literal["take-snapshot"] = "take-snapshot"
    key: Text
    whole: bool = False


class SnapshotNotice(Document):
    """A model is in the host's store, to be sent."""

    kind: Literal["snapshot"] = "snapshot"
    key: Text
    version: Count
    size_bytes: Count


class DeliveryOrder(Document):
    """Give what is stored as `key` to the workers of the host who wait for it.

    Attributes
    ----------
    round
        Number of the reduction; None for a model.
    most
        How many workers may begin to train from it; None for all.
    shards
        Number of parts of the model of which `key` is one. The last one to arrive delivers it.
    """

    kind: Literal["deliver"] = "deliver"
    key: Text
    round: Text | None = None
    version: Count = 0
    most: Count | None = None
    shards: Annotated[int, Field(ge=1, le=1024)] = 1


class AdoptionOrder(Document):
    """Replace a replica's model by the snapshot stored as `key`."""

    kind: Literal["adopt"] = "adopt"
    key: Text


class PromotionOrder(Document):
    """The replica is the server from now on."""

    kind: Literal["promote"] = "promote"


ModelMessage = (
    ModelCall
    | ModelWanted
    | ComputingNotice
    | SnapshotOrder
    | SnapshotNotice
    | DeliveryOrder
    | AdoptionOrder
    | PromotionOrder
)


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


class RelayOrder(Document):
    """Receive weights, and hand every block on to the next host.

    Attributes
    ----------
    key
        What the intros of all buckets name.
    first_transfer
        Bucket b is this transfer + b. Blocks of a version that was given up may still be on their way: no
        two orders of a connection share a number.
    sizes
        The bytes of each bucket, in the order in which they come.
    layout
        What the buckets hold, for those who read it; empty if they are bytes and nothing else.
    host, address, port
        The next host; None for the last one.
    """

    kind: Literal["relay"] = "relay"
    key: Text
    version: Count
    first_transfer: Count
    sizes: tuple[Count, ...]
    layout: str = ""
    host: Text | None = None
    address: Text | None = None
    port: Count = 0


class RelayAnswer(Document):
    """A host is ready for an order, and what it takes the buckets to be; or why it refuses.

    Attributes
    ----------
    wants_whole
        Whether it would take whole weights instead of a delta.
    """

    kind: Literal["relay-answer"] = "relay-answer"
    key: Text
    layout_sha256: str = ""
    reason: str = ""
    wants_whole: bool = False


class ChainCut(Document):
    """A host takes an order, and cannot hand blocks on to the next host: those behind it need another way."""

    kind: Literal["cut"] = "cut"
    key: Text
    reason: str


class BlocksCall(Document):
    """A sender asks which blocks of weights a host lacks.

    Attributes
    ----------
    sha256
        Hash of every block.
    """

    kind: Literal["blocks?"] = "blocks?"
    size_bytes: Count
    block_bytes: Annotated[int, Field(gt=0, lt=2**53)]
    sha256: Annotated[tuple[Text, ...], Field(max_length=4096)]


class BlocksAnswer(Document):
    """Numbers of the blocks that a host lacks; None if it does not keep weights in blocks."""

    kind: Literal["blocks"] = "blocks"
    missing: tuple[Count, ...] | None = None


class BucketSeal(Document):
    """The hash of a bucket, which comes before or after its last byte."""

    kind: Literal["seal"] = "seal"
    key: Text
    bucket: Count
    sha256: Text


class BucketNotice(Document):
    """A host has finished its own work on a bucket."""

    kind: Literal["bucket"] = "bucket"
    key: Text
    bucket: Count


class RelayNotice(Document):
    """Whether a host received weights; if not, the reason. From a sender: why it gave up.

    Attributes
    ----------
    given_up
        Whether another sender failed, of which a part of the same version was due: sending again is in vain.
    wants_whole
        Whether it would take whole weights instead of a delta.
    again
        Whether it would take the same order by another way: the host before it is gone.
    """

    kind: Literal["relayed"] = "relayed"
    key: Text
    given_up: bool = False
    wants_whole: bool = False
    again: bool = False
    received_bytes: Count = 0
    sent_bytes: Count = 0
    seconds: Amount = 0.0
    reason: str = ""


WeightMessage = (
    RelayOrder | RelayAnswer | ChainCut | BlocksCall | BlocksAnswer | BucketSeal | BucketNotice | RelayNotice
)


Message = Annotated[
    HostMessage | TransferMessage | CommitMessage | ModelMessage | GroupMessage | WeightMessage,
    Field(discriminator="kind"),
]
_ANY: TypeAdapter[Message] = TypeAdapter(Message)


def read_message(payload: bytes | bytearray) -> Message:
    """Read a message; raises WireFault for what is none."""
    try:
        return _ANY.validate_json(bytes(payload))
    except ValidationError as error:
        raise WireFault(f"a message that cannot be read: {explain(error)}") from None
