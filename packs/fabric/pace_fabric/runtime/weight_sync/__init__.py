"""Sends weights from one host to many. Each hands blocks on to others as they arrive.

Hosts form a chain, the fastest first: the sender's link carries the weights once, however many hosts there
are, and no fast host waits for a slow one. A host that fails is left out, and those behind it are served
again.
"""

from pace_fabric.runtime.weight_sync.receiver import ReceivedWeights, WeightReceiver
from pace_fabric.runtime.weight_sync.sender import WeightDelivery, WeightSender

__all__ = ["ReceivedWeights", "WeightDelivery", "WeightReceiver", "WeightSender"]
