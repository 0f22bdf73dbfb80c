"""Training with parameter servers: ``DistributedOptimizer`` over them, and training without a barrier.

What is exported here is loaded when it is first used.
"""

from typing import TYPE_CHECKING

from pace.lazy_names import loads_names

if TYPE_CHECKING:
    from pace_servers.runtime.asynchronous_optimizer import AsynchronousOptimizer, asynchronous
    from pace_servers.runtime.options import Mixed, ParameterServers

_HOMES = {
    "pace_servers.runtime.asynchronous_optimizer": ("AsynchronousOptimizer", "asynchronous"),
    "pace_servers.runtime.options": ("Mixed", "ParameterServers"),
}

__all__ = ["AsynchronousOptimizer", "Mixed", "ParameterServers", "asynchronous"]

__getattr__ = loads_names(__name__, _HOMES)
