"""State dicts from a trainer to its rollout engines, in the buckets of a plan.

The sender::

    from pace_sync.weight_sync import StateSender

    sender = StateSender(["host1:7090", "host2:7090"], plan=pace_sync.load_sync_plan("plan.json"))
    sender.send(model.state_dict(), version=step)

Each receiver::

    from pace_sync.weight_sync import StateReceiver

    receiver = StateReceiver(("0.0.0.0", 7090), like=engine.state_dict())
    weights = receiver.receive()
    engine.load_state_dict(weights.data, assign=True)

``ShardSender`` is the sender of a trainer whose ranks hold shards (DTensors), with a reshard plan.
"""

from pace_fabric.runtime.weight_sync.receiver import ReceivedWeights
from pace_fabric.runtime.weight_sync.sender import WeightDelivery
from pace_sync.weight_sync.local_shards import shard_boxes, whole_tensors
from pace_sync.weight_sync.receiver import StateReceiver
from pace_sync.weight_sync.sender import StateSender
from pace_sync.weight_sync.shard_sender import ShardSender
from pace_sync.weight_sync.state_layout import sync_tensors

__all__ = [
    "ReceivedWeights",
    "ShardSender",
    "StateReceiver",
    "StateSender",
    "WeightDelivery",
    "shard_boxes",
    "sync_tensors",
    "whole_tensors",
]
