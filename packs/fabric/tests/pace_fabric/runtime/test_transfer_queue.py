"""Who may send now, and how fast."""

from pace_fabric.runtime.scheduling.link_rates import SeenTransfer
from pace_fabric.runtime.scheduling.transfer_queue import QueuedTransfer, TransferQueue


class _Links:
    """Every link carries 10 MB/s."""

    name = "fixed"

    def rates(self, _host: str, _now_s: float) -> tuple[float, float]:
        return 1e7, 1e7

    def observe(self, seen: SeenTransfer, now_s: float) -> None:
        """Take no notice."""

    def known_s(self, _host: str, _direction: str) -> float:
        """Return that no transfer needs to tell about a link."""
        return float("inf")


class _Network:
    """A queue, and the rates that connections were told."""

    def __init__(self) -> None:
        self.rates: dict[tuple[str, str], float | None] = {}
        self.started: list[int] = []
        self.queue = TransferQueue(_Links(), self._start, self._pace)

    def _start(self, transfer: QueuedTransfer) -> None:
        self.started.append(transfer.number)
        self._pace(transfer)

    def _pace(self, transfer: QueuedTransfer) -> None:
        self.rates[transfer.source, transfer.target] = transfer.rate

    def rate(self, source: str, target: str) -> float | None:
        return self.rates[source, target]

    def submit(self, source: str, target: str, *after: int) -> int:
        return self.queue.submit(source, target, "key", 1_000_000, lambda _arrived: None, after=after)


def test_transfers_between_the_same_hosts_share_one_rate() -> None:
    """One that becomes ready overtakes a later one on the same connection, and neither is slowed down."""
    network = _Network()
    member = network.submit("h0", "h1")
    total = network.submit("h1", "server", member)
    later = network.submit("h1", "server")
    network.queue.pump(0.0)
    assert network.started == [member, later]
    network.queue.arrive(member)
    network.queue.pump(0.01)
    assert network.started == [member, later, total]
    assert network.rate("h1", "server") is None
    network.queue.arrive(total)
    network.queue.pump(0.02)
    assert network.rate("h1", "server") is None


def test_an_earlier_transfer_takes_the_link_of_a_later_one() -> None:
    """From another host it stops the later sender all but a little, and gives the link back."""
    network = _Network()
    member = network.submit("h0", "h1")
    total = network.submit("h1", "server", member)
    network.submit("h2", "server")
    network.queue.pump(0.0)
    assert network.rate("h2", "server") is None
    network.queue.arrive(member)
    network.queue.pump(0.01)
    assert network.rate("h1", "server") is None
    assert network.rate("h2", "server") == 1e5
    network.queue.arrive(total)
    network.queue.pump(0.02)
    assert network.rate("h2", "server") is None
