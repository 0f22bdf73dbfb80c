"""A file with a line of JSON for every transfer that has arrived: when it was planned to, and when it did."""

import json
from pathlib import Path

from pace_fabric.runtime.messages.transfers import ArrivalNotice
from pace_fabric.runtime.scheduling.transfer_queue import QueuedTransfer


class TransferLog:
    """Appends to a file; to none if there is no path."""

    def __init__(self, path: Path | None) -> None:
        self._file = None if path is None else path.open("a", buffering=1)

    def write(
        self, transfer: QueuedTransfer, notice: ArrivalNotice, arrived_s: float, network_state: str
    ) -> None:
        """Append what is known of a transfer that has arrived."""
        if self._file is None:
            return
        line = {
            "transfer": transfer.number,
            "purpose": transfer.purpose,
            "from": transfer.source,
            "to": transfer.target,
            "size_bytes": notice.size_bytes,
            "wire_bytes": notice.wire_bytes,
            "planned_s": transfer.planned_s,
            "began_s": transfer.began_s,
            "arrived_s": arrived_s,
            "network_state": network_state,
        }
        self._file.write(json.dumps(line) + "\n")

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
