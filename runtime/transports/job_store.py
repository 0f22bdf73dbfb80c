"""The job's store: connections to it, and the names under which ranks meet.

No name comes back within a job. A process group that is made under an old name finds the addresses that
earlier ranks left in the store, and waits for connections that are gone.
"""

import contextlib
import datetime
import hashlib
import weakref
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store

from pace.runtime.transports.peers import Store as PeerStore
from pace.runtime.transports.torch_threads import Sockets, call_within

_GIVEN_UP = "given_up"

# How long, in seconds, a rank that gives up tries to say so.
_GIVING_UP_S = 5.0


class JobStores(NamedTuple):
    """Connections to the job's store. Several, because a call that waits blocks its connection."""

    meetings: Store
    peers: PeerStore
    sockets: Sockets


# One connection for all meetings, with the job's own connection that it was cloned from. For a new connection
# the store may do a reverse name look-up, for which all ranks wait.
_connection: tuple[Any, Any] | None = None


def forget_connection() -> None:
    """Connect anew for the next meeting, as a thread that failed may still use the connection."""
    global _connection
    _connection = None


def group_name(group: Any) -> str:
    """Return a name for the ranks of a process group, equal on all of them; torch may use it again."""
    return f"{group.group_name}/{'-'.join(map(str, dist.get_process_group_ranks(group)))}"


def new_name(store: Any, group: str, rank: int) -> str:
    """Return a name under which these ranks have not met before; the same on all of them.

    The store counts meetings, by group and rank: ranks of a group meet in the same order, but may be in any
    number of other groups, and the store may outlive a process group. Meetings that a rank has given up, as
    another one did not come, do not count.

    Parameters
    ----------
    group, rank
        A name for this set of ranks, and this rank's number in it.
    """
    prefix = f"pace/{hashlib.sha256(group.encode()).hexdigest()[:16]}"
    while True:
        name = f"{prefix}/{store.add(f'{prefix}/{rank}', 1)}"
        if not store.check([f"{name}/{_GIVEN_UP}"]):
            return name


@contextlib.contextmanager
def given_up_on_failure(meeting: Any) -> Iterator[None]:
    """Tell ranks that come later, if a meeting fails inside, so that they go to the next one.

    Parameters
    ----------
    meeting
        The store with the keys of the meeting; after a failure no thread may be waiting in this connection.
    """
    try:
        yield
    except BaseException:
        with contextlib.suppress(RuntimeError, OSError):
            call_within(_GIVING_UP_S, lambda: meeting.set(_GIVEN_UP, b"1"), name="pace.store")
        raise


def meeting_store(group: str, rank: int, timeout: datetime.timedelta) -> Store:
    """Return a connection to the job's store, with keys that no earlier meeting of these ranks has used."""
    store = _connected(timeout)
    return PrefixStore(new_name(store, group, rank), store)


def open_stores(group: str, rank: int, timeout: datetime.timedelta) -> JobStores:
    """Connect to the job's store for a meeting of these ranks, and again for their signs of life."""
    store = _connected(timeout)
    name = new_name(store, group, rank)
    sockets = Sockets()
    with sockets.opened_here():
        peers: Any = PrefixStore(name, _jobs_own().clone())
    return JobStores(PrefixStore(name, store), peers, sockets)


def _connected(timeout: datetime.timedelta) -> Any:
    global _connection
    default, known = _jobs_own(), _connection
    store = known[1] if known is not None and known[0]() is default else default.clone()
    # The job's own time-out, by default torch's 30 min, would also apply to Gloo's waits for other ranks.
    store.set_timeout(timeout)
    _connection = weakref.ref(default), store
    return store


def _jobs_own() -> Any:
    return dist.distributed_c10d._get_default_store()
