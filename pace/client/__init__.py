"""The service's client, and the documents that it exchanges with the service.

The documents need neither httpx nor FastAPI, and the service uses them too: ``Client`` is loaded when it is
first used. It needs ``pace-scheduler[client]``.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pace.client.http import Client

__all__ = ["Client"]


def __getattr__(name: str) -> Any:
    if name != "Client":
        raise AttributeError(f"module 'pace.client' has no attribute {name!r}")
    from pace.client.http import Client

    return Client
