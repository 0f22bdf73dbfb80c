"""A small training job: fragments of the guides are put into it."""

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.functional import cross_entropy as loss_function

dist.init_process_group("gloo")
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
loader = [(torch.randn(16, 64), torch.randint(10, (16,))) for _ in range(4)]
batches, rank = loader, dist.get_rank()
handle: Any = None

# The example comes here.

plain = type(optimizer) is torch.optim.SGD and handle is None
for inputs, targets in [] if plain else loader:
    optimizer.zero_grad()
    loss: Any = loss_function(model(inputs), targets)
    loss.backward()
    optimizer.step()
wrapper: Any = handle or optimizer
if hasattr(wrapper, "close"):
    wrapper.close()
dist.barrier()
dist.destroy_process_group()
