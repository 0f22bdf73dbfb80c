"""Read the options of a command that describe parameter servers."""

from pathlib import Path

from pace.documents.cluster import Cluster, load_cluster
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidOptions


def described_cluster(
    profile: Profile, file: Path | None, servers: int | None, *, colocated: bool
) -> Cluster:
    """Return the cluster of a file, of a profile that was measured with one, or of `servers` servers."""
    from pace.planning.servers.clusters import cluster_for

    if file is not None:
        if servers is not None or colocated:
            raise InvalidOptions(
                "--cluster already describes the servers: leave out --servers and --colocated"
            )
        return load_cluster(file)
    if servers is not None:
        return cluster_for(profile, servers=servers, colocated=colocated)
    if isinstance(profile.allreduce, PushPull) and not colocated:
        return Cluster(name=profile.name, exchange=profile.allreduce)
    raise InvalidOptions(
        "--exchange servers: expected --servers NUMBER or --cluster FILE, as the profile was not measured "
        "with servers"
    )
