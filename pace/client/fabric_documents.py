"""What goes over the wire for transfer plans."""

from pace.documents.base import Document
from pace.documents.fabric.batch import UpdateBatch
from pace.documents.fabric.network import FabricNetwork
from pace.documents.fabric.transfer_plan import TransferOptions


class TransferPlanRequest(Document):
    """Body of ``POST /v1/transfer-plans``: the answer is the transfer plan itself."""

    network: FabricNetwork
    batch: UpdateBatch
    options: TransferOptions = TransferOptions()


def example_transfer_plan_request() -> dict[str, object]:
    """Return a request of two updates, as the interface's description shows it."""
    hosts = [
        {"name": name, "up_bytes_per_s": 1.25e9, "down_bytes_per_s": 1.25e9} for name in ("h0", "h1", "s")
    ]
    updates = [
        {"id": f"u{i}", "host": f"h{i}", "size_bytes": 100_000_000, "version": 93 + i} for i in range(2)
    ]
    return {
        "network": {"hosts": hosts, "server": "s", "aggregators": ["h0"]},
        "batch": {"version": 100, "delay_bound": 30, "updates": updates},
        "options": {"order": "search"},
    }
