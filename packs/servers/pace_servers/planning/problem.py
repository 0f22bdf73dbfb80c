"""A profile and its parameter servers, for the solver: the fusion problem of one link, and the bytes sent.

The algorithms are those of ``pace.planning.fusion``, with the cost g(x) = theta + e x. Every tail includes
the lag from the end of a gradient's last push to the end of its pull.
"""

from dataclasses import dataclass, replace

import numpy as np

from pace.documents.cluster import Cluster
from pace.documents.profile import MAX_TOTAL_S, Profile
from pace.errors import InvalidCluster
from pace.planning.fusion.problem import FusionProblem
from pace.solver.arrays import FloatArray
from pace.solver.cost_curve import CostCurve
from pace.solver.flow_shop.lockstep import SharedLinks, best_partition_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ServersProblem:
    """Gradients, and the links that they cross.

    Attributes
    ----------
    plain
        The gradients with their own ready times and tails, at the cost of theta and e.
    links
        The links that one worker's messages share.
    lost_s
        theta, the seconds that each part loses.
    seconds_per_byte
        e, the link time of a byte pushed by all workers. If pushes and pulls share links, it includes the
        pull.
    push_bytes, pull_bytes : arrays of shape (num_gradients,)
        The bytes of each gradient sent in each direction.
    least_bytes
        The smallest size of a part that is not a whole group. It only excludes plans, so bounds still hold.
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
        """Build from the documents; of embedding tables, the rows touched are sent if the profile has them.

        Raises
        ------
        InvalidCluster
            If the servers do not fit the workers, or a ratio is for an unknown gradient.
        """
        cluster = cluster.with_touched_rows(profile)
        exchange = cluster.exchange
        try:
            per_byte = exchange.seconds_per_byte(profile.workers)
            links = exchange.links(profile.workers)
        except ValueError as error:
            raise InvalidCluster(f'cluster "{cluster.name}": {error}') from None
        cost = CostCurve.affine(exchange.partition_s, per_byte)
        # Two links are busy at a time. The slow-down of compute by that is neither measured nor modeled.
        plain = replace(FusionProblem.of(profile), cost=cost, slowdown=1.0)
        index = {gradient.name: number for number, gradient in enumerate(profile.gradients)}
        push, pull = plain.sizes.astype(np.float64), plain.sizes.astype(np.float64)
        for ratio in cluster.ratios:
            if ratio.gradient not in index:
                raise InvalidCluster(
                    f'cluster "{cluster.name}" has a ratio for "{ratio.gradient}", but profile '
                    f'"{profile.name}" has no gradient of this name'
                )
            push[index[ratio.gradient]] *= ratio.push
            pull[index[ratio.gradient]] *= ratio.pull
        seconds = exchange.round_trip_s + 2 * exchange.partition_s
        with np.errstate(all="ignore"):
            seconds += per_byte * float(push.sum() + pull.sum())
        if not seconds <= MAX_TOTAL_S:
            raise InvalidCluster(
                f'cluster "{cluster.name}": pushes and pulls of all gradients take {seconds:g} s, '
                f"at most {MAX_TOTAL_S:g} s are allowed"
            )
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
        """Whether every gradient is sent uncompressed in both directions."""
        return bool(
            (self.push_bytes == self.plain.sizes).all() and (self.pull_bytes == self.plain.sizes).all()
        )

    @property
    def sent_bytes(self) -> FloatArray:
        """The bytes of each gradient that are sent in the direction in which more are sent."""
        return np.maximum(self.push_bytes, self.pull_bytes)

    @property
    def _fusing(self) -> FusionProblem:
        """The gradients for the search for groups: one with a ratio has the bytes sent, and its own group."""
        plain = self.plain
        uneven = np.flatnonzero((self.push_bytes != plain.sizes) | (self.pull_bytes != plain.sizes))
        sizes, classes = plain.sizes.copy(), plain.dtypes.copy()
        elements = np.ceil(self.sent_bytes[uneven] / plain.element_bytes[uneven])
        sizes[uneven] = elements.astype(np.int64) * plain.element_bytes[uneven]
        classes[uneven] = classes.max(initial=0) + 1 + np.arange(len(uneven))
        return replace(plain, sizes=sizes, dtypes=classes)

    @property
    def latency_s(self) -> float:
        """The least time from the last push of a set to its pull, in seconds; 0 if both share links."""
        return 0.0 if self.links.shared else self.links.latency_s

    def lagging(self, partition_bytes: float) -> FusionProblem:
        """Return the fusion problem whose tails include the lag of a last part of `partition_bytes`."""
        own_pull = self.lost_s + self.seconds_per_byte * partition_bytes
        lag = self.links.latency_s + (own_pull / 2 if self.links.shared else own_pull)
        return replace(self._fusing, tail=self.plain.tail + lag)

    def suggested_partition_bytes(self) -> float:
        """Return delta0 in sent bytes, for the rate at which the servers serve all workers."""
        return best_partition_bytes(
            float(self.sent_bytes.sum()),
            lost_s=self.lost_s,
            bytes_per_s=1 / self.seconds_per_byte,
            num_servers=self.links.num_servers,
        )
