"""What workers have beside the tables: one layer, or the layers of a DLRM."""

import argparse

import torch
from torch import nn

from benchmarks.studies.embedding.batches import DENSE, WIDTH


class Linear(nn.Module):
    """One layer over the pooled rows of all tables."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.layer = nn.Linear(tables * WIDTH, 1)

    def forward(self, _dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        logits: torch.Tensor = self.layer(pooled.movedim(0, 1).flatten(1))
        return logits


class Dlrm(nn.Module):
    """What Meta's DLRM has beside its tables: layers below, dot products of all pairs, layers above."""

    def __init__(self, tables: int) -> None:
        super().__init__()
        self.below = nn.Sequential(nn.Linear(DENSE, 256), nn.ReLU(), nn.Linear(256, WIDTH), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.above = nn.Sequential(nn.Linear(pairs + WIDTH, 256), nn.ReLU(), nn.Linear(256, 1))
        self.register_buffer("pairs", torch.tril_indices(tables + 1, tables + 1, offset=-1), persistent=False)

    def forward(self, dense: torch.Tensor, pooled: torch.Tensor) -> torch.Tensor:
        """Return a logit for each example; `pooled` has shape (tables, examples, width)."""
        below = self.below(dense)
        all_of = torch.cat([below[:, None], pooled.movedim(0, 1)], dim=1)
        products = torch.bmm(all_of, all_of.transpose(1, 2))
        left, right = self.get_buffer("pairs")
        logits: torch.Tensor = self.above(torch.cat([below, products[:, left, right]], dim=1))
        return logits


def make_head(options: argparse.Namespace) -> nn.Module:
    """Return the layers of a worker; DDP averages those of a DLRM."""
    torch.manual_seed(0)
    if options.model == "linear":
        return Linear(options.tables)
    return nn.parallel.DistributedDataParallel(Dlrm(options.tables))


def loss_of(out: torch.Tensor, clicks: torch.Tensor) -> torch.Tensor:
    """Return the loss of a batch."""
    return nn.functional.binary_cross_entropy_with_logits(out, clicks)
