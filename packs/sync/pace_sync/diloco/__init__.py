"""DiLoCo's outer step: fragments of a model averaged over workers, by a plan, while training goes on.

For a model that `torch.distributed` trains, after every step of the inner optimizer::

    from pace_sync.diloco import GroupMean, OuterStep

    outer = lambda parameters: torch.optim.SGD(parameters, lr=0.7, momentum=0.9, nesterov=True)
    step = OuterStep(model, outer, GroupMean(), members=4, plan=pace_sync.load_outer_plan("plan.json"))
    ...
    step.step()

Without a plan, each call averages the whole model and waits for it.
"""

from pace_sync.diloco.elastic_outer_step import ElasticOuterStep
from pace_sync.diloco.group_mean import GroupMean
from pace_sync.diloco.outer_step import MeanExchange, OuterStep, TorchftArguments, torchft_arguments
from pace_sync.diloco.parameter_parts import outer_layers

__all__ = [
    "ElasticOuterStep",
    "GroupMean",
    "MeanExchange",
    "OuterStep",
    "TorchftArguments",
    "outer_layers",
    "torchft_arguments",
]
