"""Simulation of pushes and pulls: workers, servers and links, under the policies of the field.

``simulate_exchange(profile, cluster, policy)`` runs several windows of all workers one after another. A
worker's compute is its profile's; a partition is pushed over the worker's uplink and its server's ingress,
summed, and pulled over the server's egress and the worker's downlink. Links are shared max-min fairly by
the messages under way.
"""

from pace.simulation.parameter_server.policies import EXCHANGE_POLICIES, exchange_knobs, make_exchange_policy
from pace.simulation.parameter_server.run import ExchangeSimulation, simulate_exchange

__all__ = [
    "EXCHANGE_POLICIES",
    "ExchangeSimulation",
    "exchange_knobs",
    "make_exchange_policy",
    "simulate_exchange",
]
