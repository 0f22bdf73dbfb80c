"""Ports for servers that tests start a while later, or again."""

import random
import socket

# Below the ports that Linux gives to connections: these would take one between the choice and the start.
_PORTS = range(12_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Return different ports on which nobody listens on loopback."""
    found: list[int] = []
    chance = random.SystemRandom()
    while len(found) < count:
        port = chance.choice(_PORTS)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found


def free_port() -> int:
    """Return a port on which nobody listens on loopback."""
    return free_ports(1)[0]
