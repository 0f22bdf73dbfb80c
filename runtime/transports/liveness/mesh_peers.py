"""Signs of life over a whole mesh, for ranks that also wait for ranks outside of their transport.

Under ``fully_shard`` a rank sums gradients with its replicas, and also waits for the ranks of its shards. A
lost rank with another replica and another shard stops it too, because some of these ranks wait for the lost
one.
"""

from collections.abc import Callable, Sequence

from pace.runtime.transports.liveness.peers import Peers, Progress, Store
from pace.runtime.transports.sockets import Sockets


class MeshPeers(Peers):
    """The signs of life of all ranks of a mesh. Requests between ranks go to the replicas only.

    Parameters
    ----------
    store
        The store shared by all ranks of the mesh; no other thread uses it.
    members
        The ranks of the mesh, including this one, as numbered in the whole job.
    rank
        This rank's number in the whole job.
    replicas
        The transport's peers: the ranks with which this one sums gradients.
    sockets
        The store's connections.
    """

    def __init__(
        self, store: Store, members: Sequence[int], rank: int, *, replicas: Peers, sockets: Sockets
    ) -> None:
        self._replicas = replicas
        super().__init__(
            store,
            members.index(rank),
            len(members),
            keeper=members.index(0) if 0 in members else None,
            names=[f"rank {each} of the whole job" for each in members],
            sockets=sockets,
        )

    def follow(self, progress: Progress, answer: Callable[[int], bool] | None = None) -> None:
        """Report this rank's progress to the whole mesh, and answer its replicas; see ``Peers``."""
        super().follow(progress)
        self._replicas.follow(progress, answer)

    def follow_state(self, give: Callable[[list[int]], bool]) -> None:
        """Answer replicas that ask for the optimizer's state; see ``Peers``."""
        self._replicas.follow_state(give)

    def ask(self, turn: int) -> None:
        """Ask the replicas; see ``Peers``."""
        self._replicas.ask(turn)

    def ask_for_state(self, number: int, step: int, *, last: bool) -> None:
        """Ask the replicas; see ``Peers``."""
        self._replicas.ask_for_state(number, step, last=last)

    def close(self, reason: str | None = None, *, failed: bool = False) -> None:
        """Say goodbye to the mesh and to the replicas; see ``Peers``."""
        self._replicas.leave(reason, failed=failed)
        super().close(reason, failed=failed)
        self._replicas.close(reason, failed=failed)

    def lose_store(self) -> None:
        """Do not wait for either store, which are on one host; see ``Peers``."""
        super().lose_store()
        self._replicas.lose_store()

    def release(self) -> None:
        """Release both stores."""
        super().release()
        self._replicas.release()
