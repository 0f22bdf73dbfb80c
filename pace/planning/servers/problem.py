"""A profile on a cluster as the solver sees it: the fusion problem of one link, and what travels.

The mathematics is that of ``pace.planning.fusion`` with the cost g(x) = theta + e x and, in every tail, the
lag from the end of a gradient's last push to the end of its pull.
"""

from dataclasses import dataclass, replace

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.profile import Profile
from pace.errors import InvalidCluster
from pace.planning.fusion.problem import FusionProblem
from pace.solver.arrays import FloatArray
from pace.solver.cost import CostCurve
from pace.solver.flow_shop.fluid import best_partition_bytes
from pace.solver.flow_shop.lockstep import SharedLinks


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersProblem:
    """Gradients, and the links that they cross.

    Attributes
    ----------
    plain
        The gradients with their own ready times and tails, priced at theta and e.
    links
        What one worker's messages share.
    seconds_per_byte
        e: link time of a byte, pushed by all workers; of its push and its pull together where they share
        links.
    push_bytes, pull_bytes : arrays of shape (num_gradients,)
        What travels of every gradient in each direction.
    least_bytes
        No part is smaller, unless it is a whole group. It only takes plans away: what bounds all of them
        bounds those that are left.
    """

    plain: FusionProblem
    links: SharedLinks
    lost_s: float
    seconds_per_byte: float
    push_bytes: FloatArray
    pull_bytes: FloatArray
    least_bytes: int = 0

    @classmethod
    def of(cls, profile: Profile, cluster: Cluster) -> "ServersProblem":
        """Build from the documents.

        Raises
        ------
        InvalidCluster
            If the servers do not fit the workers, or a ratio names no gradient.
        """
        exchange = cluster.exchange
        try:
            per_byte = exchange.seconds_per_byte(profile.workers)
            links = exchange.links(profile.workers)
        except ValueError as error:
            raise InvalidCluster(f'cluster "{cluster.name}": {error}') from None
        cost = CostCurve.affine(exchange.partition_s, per_byte)
        # Two links carry at once, for which no slow-down of compute was measured or is modeled.
        plain = replace(FusionProblem.of(profile), cost=cost, slowdown=1.0)
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        push, pull = plain.sizes.astype(np.float64), plain.sizes.astype(np.float64)
        for ratio in cluster.ratios:
            if ratio.gradient not in index:
                raise InvalidCluster(
                    f'cluster "{cluster.name}": a ratio names "{ratio.gradient}", which is no gradient '
                    f'of profile "{profile.name}"'
                )
            push[index[ratio.gradient]] *= ratio.push
            pull[index[ratio.gradient]] *= ratio.pull
        return cls(
            plain=plain,
            links=links,
            lost_s=exchange.partition_s,
            seconds_per_byte=per_byte,
            push_bytes=push,
            pull_bytes=pull,
            least_bytes=exchange.min_partition_bytes,
        )

    @property
    def is_even(self) -> bool:
        """Whether every gradient travels as it is, both ways."""
        return bool(
            (self.push_bytes == self.plain.sizes).all() and (self.pull_bytes == self.plain.sizes).all()
        )

    @property
    def latency_s(self) -> float:
        """What follows the last push of any set before its pull: nothing certain where both share links."""
        return 0.0 if self.links.shared else self.links.latency_s

    def lagging(self, partition_bytes: float) -> FusionProblem:
        """Return the fusion problem whose tails hold the lag of a last part of `partition_bytes`."""
        own_pull = self.lost_s + self.seconds_per_byte * partition_bytes
        lag = self.links.latency_s + (own_pull / 2 if self.links.shared else own_pull)
        return replace(self.plain, tail=self.plain.tail + lag)

    def suggested_partition_bytes(self) -> float:
        """Return delta0 for the rate at which all workers together are served."""
        return best_partition_bytes(
            float(self.plain.sizes.sum()),
            lost_s=self.lost_s,
            bytes_per_s=1 / self.seconds_per_byte,
            num_servers=self.links.num_servers,
        )
