"""Simulation of pushes and pulls: workers, servers and links, under the policies of the field.

``run_server_policy(profile, cluster, policy)`` runs several windows of all workers one after another. A
worker's compute is its profile's; a partition is pushed over the worker's uplink and its server's ingress,
summed, and pulled over the server's egress and the worker's downlink. Links are shared max-min fairly by
the messages under way.
"""
