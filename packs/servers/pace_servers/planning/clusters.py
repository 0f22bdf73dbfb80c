"""Parameter servers for a profile that was measured without any: the network follows from its all-reduce."""

from pydantic import ValidationError

from pace.collectives import ring_factors
from pace.documents.base import explain
from pace.documents.cluster import Cluster
from pace.documents.collective_costs import AffineAllReduce, SampledAllReduce, TwoLevelAllReduce
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidOptions

# With this theta of 47 us, the best partition sizes agree with all three that ByteScheduler publishes for
# push and pull (Table 1).
PARTITION_S = 47e-6


def cluster_for(
    profile: Profile,
    *,
    servers: int,
    colocated: bool = False,
    worker_bytes_per_s: float | None = None,
    round_trip_s: float | None = None,
) -> Cluster:
    """Return `servers` parameter servers on the network of a profile's all-reduce.

    A cost that is one line or samples is taken for that of a ring.

    Parameters
    ----------
    servers
        Number of servers.
    colocated
        Whether they run on the workers' hosts.
    worker_bytes_per_s, round_trip_s
        Rate of the workers' links and the round trip (default: those that follow from the profile).

    Raises
    ------
    InvalidOptions
        If no rate follows from the profile's cost, or the servers do not fit.
    """
    cost = profile.allreduce
    if isinstance(cost, PushPull):
        rate, trip, lost, at_servers = (
            cost.worker_bytes_per_s,
            cost.round_trip_s,
            cost.partition_s,
            cost.server_bytes_per_s,
        )
    else:
        rate, trip = _network_of(profile) if worker_bytes_per_s is None else (worker_bytes_per_s, 0.0)
        lost, at_servers = PARTITION_S, None
    least = cost.min_partition_bytes if isinstance(cost, PushPull) else 0
    try:
        exchange = PushPull(
            servers=servers,
            colocated=colocated,
            worker_bytes_per_s=rate if worker_bytes_per_s is None else worker_bytes_per_s,
            server_bytes_per_s=None if colocated else at_servers,
            partition_s=lost,
            round_trip_s=trip if round_trip_s is None else round_trip_s,
            min_partition_bytes=least,
        )
        exchange.seconds_per_byte(profile.workers)
    except ValidationError as error:
        raise InvalidOptions(explain(error)) from None
    except ValueError as error:
        raise InvalidOptions(str(error)) from None
    where = "colocated" if colocated else "dedicated"
    return Cluster(name=f"{servers} {where} servers", exchange=exchange)


def _network_of(profile: Profile) -> tuple[float, float]:
    """Return a link's rate and a round trip from the cost of an all-reduce."""
    cost = profile.allreduce
    assert not isinstance(cost, PushPull)
    if isinstance(cost, AffineAllReduce | SampledAllReduce):
        steps, volume = ring_factors(profile.workers)
        slope = profile.cost.slope_beyond
        if not steps or slope <= 0:
            raise InvalidOptions(
                f'profile "{profile.name}": its all-reduce cost does not tell a link rate: give a cluster'
            )
        return volume / slope, 2 * profile.cost.durations_s[0] / steps
    level = cost.inter if isinstance(cost, TwoLevelAllReduce) else cost
    return level.bandwidth_bytes_per_s, 2 * level.latency_s
