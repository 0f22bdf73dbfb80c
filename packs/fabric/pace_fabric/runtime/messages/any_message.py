"""Every message that a fabric's processes exchange, and how one is read."""

from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from pace.documents.base import explain
from pace.wire.frames import WireFault
from pace_fabric.runtime.messages.commits import CommitMessage
from pace_fabric.runtime.messages.groups import GroupMessage
from pace_fabric.runtime.messages.hosts import HostMessage
from pace_fabric.runtime.messages.models import ModelMessage
from pace_fabric.runtime.messages.transfers import TransferMessage
from pace_fabric.runtime.messages.weights import WeightMessage

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
