"""Compiles something when it is loaded: forks of the process find what Inductor makes for the first graph.

These are matrix products alone, for which Inductor generates no code: what it is once told to leave to torch,
it leaves to torch for as long as a process lives.
"""

import torch
from torch._inductor import config
from torch._inductor.utils import fresh_cache

# Without threads that compile, which a fork would not have.
with config.patch(compile_threads=1), fresh_cache():
    product = torch.compile(torch.mm)(torch.ones(2, 3), torch.ones(3, 2, requires_grad=True))
    torch.autograd.backward(product, torch.ones(2, 2))
torch._dynamo.reset()
