"""Options that describe parameter servers, and how far workers may be ahead of one another."""

from collections.abc import Mapping
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import typer

from pace.documents.cluster import Cluster, load_cluster
from pace.documents.profile import Profile
from pace.documents.push_pull import PushPull
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_option

SERVERS = "Parameter servers"
ColocatedOption = Annotated[
    bool,
    typer.Option(
        "--colocated",
        help="Run the servers on the workers' hosts instead of on separate hosts.",
        rich_help_panel=SERVERS,
    ),
]


def _flag(name: str, default: Any, annotation: Any) -> Parameter:
    return Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=default, annotation=annotation)


CLUSTER = (
    _flag(
        "servers",
        None,
        Annotated[
            int | None,
            typer.Option(
                help="Number of parameter servers.",
                show_default="those of the profile",
                rich_help_panel=SERVERS,
            ),
        ],
    ),
    _flag("colocated", False, ColocatedOption),
    _flag(
        "cluster",
        None,
        Annotated[
            Path | None,
            file_option(
                "Cluster document (JSON) that describes the servers, instead of --servers and --colocated.",
                show_default="none",
                rich_help_panel=SERVERS,
            ),
        ],
    ),
)
STALENESS = _flag(
    "staleness",
    "sync",
    Annotated[
        str,
        typer.Option(
            help="Number of iterations that a worker may be ahead of the slowest one; sync is 0, async has "
            "no limit.",
            rich_help_panel=SERVERS,
        ),
    ],
)


def read(profile: Profile, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cluster that options describe, and if they say so how far workers may be ahead."""
    from pace_servers.what_if import read_staleness

    fields: dict[str, Any] = {
        "cluster": described_cluster(profile, **{f.name: given[f.name] for f in CLUSTER})
    }
    if STALENESS.name in given:
        fields["consistency"], fields["staleness"] = read_staleness(given[STALENESS.name])
    return fields


def described_cluster(
    profile: Profile, *, cluster: Path | None, servers: int | None, colocated: bool
) -> Cluster:
    """Return the cluster of a file, of a profile that was measured with one, or of `servers` servers."""
    from pace_servers.planning.clusters import cluster_for

    if cluster is not None:
        if servers is not None or colocated:
            raise InvalidOptions(
                "--cluster already describes the servers: leave out --servers and --colocated"
            )
        return load_cluster(cluster)
    if servers is not None:
        return cluster_for(profile, servers=servers, colocated=colocated)
    if isinstance(profile.allreduce, PushPull) and not colocated:
        return Cluster(name=profile.name, exchange=profile.allreduce)
    raise InvalidOptions(
        "--exchange servers: expected --servers NUMBER or --cluster FILE, as the profile was not measured "
        "with servers"
    )
