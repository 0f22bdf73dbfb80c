"""Signs of life over a whole mesh, for ranks that train with only a few of those that they wait for.

Under ``fully_shard`` a rank sums gradients with its replicas, and waits for the ranks of its shards as well.
A rank that is lost in another replica and another shard stops it too: by way of ranks that wait for it.
"""

from collections.abc import Callable, Sequence

from pace.runtime.transports.peers import Peers, Progress, Store
from pace.runtime.transports.sockets import Sockets


class MeshPeers(Peers):
    """The signs of life of all ranks of a mesh; what ranks ask one another stays among the replicas.

    Parameters
    ----------
    store
        Shared by all ranks of the mesh, used by no other thread.
    members
        The ranks of the mesh, as numbered in the whole job, this one among them.
    rank
        This one's number in the whole job.
    replicas
        What the transport has: the ranks that this one sums gradients with.
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
            global_ranks=members,
            sockets=sockets,
        )

    def follow(self, progress: Progress, answer: Callable[[int], bool] | None = None) -> None:
        """Say how far this rank is to the whole mesh, and answer its replicas; see ``Peers``."""
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

    def release(self) -> None:
        """Let go of both stores."""
        super().release()
        self._replicas.release()

    def _name(self, rank: int) -> str:
        assert self._global_ranks is not None
        return f"rank {self._global_ranks[rank]} of the whole job"
