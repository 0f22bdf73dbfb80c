"""Finds the connections of a library that gives no access to them, to break them when the process ends."""

import contextlib
import os
import socket
import stat
from collections.abc import Iterator


class Sockets:
    """The sockets that were opened during a block of code.

    They include those that other threads open meanwhile, so break them only if that does no harm.
    """

    def __init__(self) -> None:
        self._inodes: set[int] = set()

    @contextlib.contextmanager
    def opened_here(self) -> Iterator[None]:
        """Record the sockets that exist at the block's end and did not at its start."""
        before = set(_open_sockets())
        try:
            yield
        finally:
            self._inodes |= set(_open_sockets()) - before

    def shut_down(self) -> None:
        """Shut down those that are still open; calls that wait for them, on either side, end at once."""
        for inode, descriptor in _open_sockets().items():
            if inode in self._inodes:
                with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as connection:
                    # If a listener is gone, Gloo takes that for an internal error and aborts.
                    if not connection.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                        connection.shutdown(socket.SHUT_RDWR)


def _open_sockets() -> dict[int, int]:
    """Return this process's socket descriptors by inode; none if the system does not list them."""
    found: dict[int, int] = {}
    with contextlib.suppress(OSError):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                status = os.fstat(int(name))
                if stat.S_ISSOCK(status.st_mode):
                    found[status.st_ino] = int(name)
    return found
