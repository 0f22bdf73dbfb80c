"""The documents of the fabric: a network, a batch of updates, the transfer plan, and scenarios of whole runs."""
