"""A ring over Gloo for reduce-scatters and all-gathers, for jobs whose own library has no fast ones."""

import datetime
from typing import Any

import torch
from torch._C._distributed_c10d import Store

from pace.runtime.transports.gloo_groups import broadcast_over, connect_group, release_groups
from pace.runtime.transports.ring import Ring
from pace.runtime.transports.sockets import Sockets
from pace.runtime.transports.transport import Done, Parts


class GlooHalves:
    """A ring between ranks that share a store; every rank must open it.

    Parameters
    ----------
    hostname
        The name by which other ranks reach this one.
    scale
        Every sum is multiplied by this.
    """

    hand_over_s = 1e-3

    def __init__(
        self,
        store: Store,
        rank: int,
        size: int,
        *,
        timeout: datetime.timedelta,
        hostname: str,
        scale: float,
    ) -> None:
        self._rank = rank
        self._scale = scale
        self._sockets = Sockets()
        with self._sockets.opened_here():
            self._groups: list[Any] = [
                connect_group(store, name, rank, size, timeout=timeout, hostname=hostname)
                for name in ("halves", "decisions")
            ]
        self.ring = Ring(self._groups[0], rank, size)

    def reduce_scatter(self, parts: Parts, name: str, done: Done) -> None:
        """Start to sum matrices by rows; see ``Transport``."""

        def scaled(error: BaseException | None) -> None:
            if error is None and self._scale != 1.0:
                with torch.no_grad():
                    for part in parts:
                        part[self._rank].mul_(self._scale)
            done(error)

        self.ring.reduce_scatter(parts, name, scaled)

    def all_gather(self, parts: Parts, name: str, done: Done) -> None:
        """Start to give every rank all rows; see ``Transport``."""
        self.ring.all_gather(parts, name, done)

    def decide(self, segment: int | None) -> int:
        """Publish or receive rank 0's choice; see ``Transport``."""
        message = torch.tensor([-1 if segment is None else segment], dtype=torch.int64, device="cpu")
        broadcast_over(self._groups[1], message)
        return int(message.item())

    def close(self, *, failed: bool) -> None:
        """End the ring, and close its connections."""
        self.ring.close(failed=failed)
        groups, self._groups = self._groups, []
        release_groups(groups, self._sockets, failed=failed)
