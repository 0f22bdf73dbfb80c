"""Simulation of pushes and pulls: workers, servers and links, under the policies of the field.

``run_server_policy(profile, cluster, policy)`` simulates several windows of all workers, one after another.
Each worker computes the ops of the profile. A partition is pushed over the worker's uplink and its server's
incoming link, summed, and pulled over the server's outgoing link and the worker's downlink. The messages in
flight share links max-min fairly.
"""
