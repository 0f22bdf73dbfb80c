"""Documents of the HTTP interface for order checks."""

from datetime import datetime
from typing import Annotated

from pydantic import Field

from pace.client.documents import ResourceId
from pace.documents.base import Document
from pace.documents.order.job_program import JobProgram
from pace.documents.order.order_report import OrderReport, StreamRule
from pace.documents.profile import Name
from pace.documents.schedule import Sha256


class OrderCheckRequest(Document):
    """Body of ``POST /v1/order-checks``: what every rank enqueues, and how devices run it."""

    program: JobProgram
    streams: StreamRule = "side-by-side"
    launch_slots: Annotated[int, Field(ge=1)] | None = None


class OrderCheckSummary(Document):
    """A stored order check without its report; `id` follows from program, options and version."""

    id: ResourceId
    name: Name
    program_sha256: Sha256
    created_at: datetime


class OrderCheckResource(OrderCheckSummary):
    """A stored order check, as ``pace check-order --json`` prints it."""

    report: OrderReport
