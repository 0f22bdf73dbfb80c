"""The testbed of pushes and pulls: policies of parameter servers over one wire, side by side.

A setting is a *layout*, so many workers and servers on hosts of their own or shared. Contenders are the
simulator's policies, run as they are written there over the runtime's own connections; see docs/testbed.md.
"""
