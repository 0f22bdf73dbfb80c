"""Updates on the way to a server: order, aggregation, replication and distribution. Knows no document.

Every host has two links, one up and one down; the network between hosts is never the bottleneck. Times are in
seconds from now, sizes in bytes, rates in bytes per second.
"""
