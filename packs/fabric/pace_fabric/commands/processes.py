"""``pace fabric``'s processes: scheduler, daemons of hosts, server and replica."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pace.counted import counted
from pace.errors import InvalidOptions
from pace.terminal.command_line import file_option, output_option
from pace.terminal.console import JsonOption
from pace.terminal.processes import (
    Authority,
    Bind,
    Certificate,
    CertificateKey,
    place_of,
    serving_context,
    trusting_context,
    until_stopped,
)
from pace.terminal.reporting import reported
from pace_fabric.documents.transfer_plan import TransferOptions

if TYPE_CHECKING:
    from pace_fabric.runtime.held_model import HeldModel

TOKEN = "PACE_FABRIC_TOKEN"
REPLICA = "Replica"
# A scheduler that runs answers within this time.
ANSWERS_WITHIN_S = 10.0
LATE = " ".join((TransferOptions.model_fields["late"].description or "").split())
SchedulerPlace = Annotated[str, typer.Option(help="HOST:PORT of the fabric's scheduler.")]
TokenFile = Annotated[
    Path | None,
    file_option(
        "File with the secret token that all processes of the fabric share.",
        show_default=f"the variable {TOKEN}",
    ),
]
HostName = Annotated[str, typer.Option("--name", help="Name of this host, as in the network document.")]
Advertised = Annotated[
    str | None,
    typer.Option(
        help="Address under which other hosts reach this one, without a port.", show_default="as in --bind"
    ),
]
ModelFile = Annotated[
    Path, file_option("Initial model: a .npy file of float32, float16 or bfloat16.", "--model")
]
LogFile = Annotated[
    Path | None, output_option("Append the commit log to this file.", "--log", show_default="no log")
]
Silence = Annotated[
    float, typer.Option(min=1, help="Seconds without any message after which a connection counts as lost.")
]


def shard_of(text: str) -> tuple[int, int]:
    """Return N and M of N/M."""
    number, slash, shards = text.partition("/")
    if not slash or not number.isdigit() or not shards.isdigit() or int(number) >= int(shards):
        raise InvalidOptions(f"--shard {text!r}: expected N/M with N from 0 to M - 1, for example 0/2")
    return int(number), int(shards)


def scheduler(
    bind: Bind = "127.0.0.1:7080",
    delay_bound: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Bound on delays in versions: every committed update's delay is smaller.",
            show_default="no bound",
        ),
    ] = None,
    late: Annotated[str, typer.Option(help=LATE)] = "drop",
    merge: Annotated[
        str,
        typer.Option(help="What a commit adds to the model: sum (of its updates) or weighted-mean."),
    ] = "sum",
    momentum: Annotated[float, typer.Option(min=0, max=0.999, help="Momentum applied at each commit.")] = 0.0,
    exact_momentum: Annotated[
        bool,
        typer.Option(help="Apply momentum once for every update instead of once for every commit."),
    ] = False,
    aggregators: Annotated[
        int | None,
        typer.Option(min=0, help="Largest number of hosts that aggregate updates.", show_default="all hosts"),
    ] = None,
    network: Annotated[
        Path | None,
        file_option(
            "Network document (JSON) with the initial rates of links.", show_default="rates are measured"
        ),
    ] = None,
    servers: Annotated[
        int, typer.Option(min=1, max=1024, help="Number of servers over which the model is split.")
    ] = 1,
    tick_s: Annotated[
        float, typer.Option(min=0.001, max=3600, help="Longest time between two plans, in seconds.")
    ] = 0.1,
    probe_s: Annotated[
        float,
        typer.Option(
            min=0.01, max=1e6, help="Seconds without a transfer after which a link's rate is measured again."
        ),
    ] = 1.0,
    divergence: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="Largest norm of the difference between the server's model and its replica.",
            show_default="no replica",
            rich_help_panel=REPLICA,
        ),
    ] = None,
    divergence_updates: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Largest number of updates that the replica is behind the server.",
            show_default="no replica",
            rich_help_panel=REPLICA,
        ),
    ] = None,
    replicate_patiently: Annotated[
        bool,
        typer.Option(
            help="Send nothing to the replica until half of its bound is used, which saves bytes.",
            rich_help_panel=REPLICA,
        ),
    ] = False,
    replica_buffer_bytes: Annotated[
        float,
        typer.Option(
            min=0,
            help="Largest number of bytes that a host keeps for the replica.",
            show_default="no limit",
            rich_help_panel=REPLICA,
        ),
    ] = float("inf"),
    failover_s: Annotated[
        float,
        typer.Option(
            min=0,
            help="Seconds after which the replica takes the place of a lost server.",
            rich_help_panel=REPLICA,
        ),
    ] = 2.0,
    oracle_lag_s: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="For experiments: instead of measured rates, use the rates that --network had this many "
            "seconds ago.",
            show_default="measured rates",
        ),
    ] = None,
    transfer_log: Annotated[
        Path | None, output_option("Append a line for every transfer to this file.", show_default="no log")
    ] = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
) -> None:
    """Run the scheduler of a fabric until SIGTERM or Ctrl-C.

    If it is restarted at the same address, hosts connect again and training goes on.
    """
    with reported():
        from pace.wire.addresses import read_token
        from pace_fabric.documents.batch import DivergenceLimit
        from pace_fabric.documents.reading import load_network
        from pace_fabric.runtime.scheduling.batch_planner import warm_up
        from pace_fabric.runtime.scheduling.link_rates import MeasuredState, NetworkState, OracleState
        from pace_fabric.runtime.scheduling.scheduler import FabricScheduler
        from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions

        if divergence is not None and divergence_updates is not None:
            raise InvalidOptions(
                "--divergence and --divergence-updates are two bounds: give only one of them"
            )
        if late not in ("drop", "hold", "downweight", "pace"):
            raise InvalidOptions(f"--late {late!r}: expected drop, hold, downweight or pace")
        if merge not in ("sum", "weighted-mean"):
            raise InvalidOptions(f"--merge {merge!r}: expected sum or weighted-mean")
        limit = None
        if divergence is not None:
            if divergence == float("inf"):
                raise InvalidOptions("--divergence inf: give a finite number, or leave it out")
            limit = DivergenceLimit(kind="norm", max=divergence)
        elif divergence_updates is not None:
            limit = DivergenceLimit(kind="updates", max=divergence_updates)
        document = None if network is None else load_network(network)
        state: NetworkState = MeasuredState(document)
        if oracle_lag_s is not None:
            if document is None:
                raise InvalidOptions("--oracle-lag-s needs --network: the rates come from that document")
            state = OracleState(document, lag_s=oracle_lag_s)
        options = SchedulerOptions(
            delay_bound=delay_bound,
            late=late,  # type: ignore[arg-type]  # checked above
            merge=merge,  # type: ignore[arg-type]
            momentum=momentum,
            exact_momentum=exact_momentum,
            replicate_patiently=replicate_patiently,
            buffer_bytes=replica_buffer_bytes,
            servers=servers,
            aggregators=document.aggregators if document is not None and document.aggregators else None,
            most_aggregators=aggregators,
            divergence=limit,
            tick_s=tick_s,
            probe_s=probe_s,
            failover_s=failover_s,
            transfer_log=transfer_log,
        )
        warm_up()
        with FabricScheduler(
            options,
            bind=place_of(bind, "--bind"),
            state=state,
            token=read_token(token_file, TOKEN),
            ssl_context=serving_context(tls_cert, tls_key),
        ) as running:
            until_stopped(running.address)


def _run_host(
    name: str,
    place: str,
    bind: str,
    advertise: str | None,
    model: "HeldModel | None",
    tls: tuple[Path | None, Path | None, Path | None],
    token_file: Path | None,
    silence_s: float,
    *,
    replica: bool = False,
    shard: tuple[int, int] = (0, 1),
) -> None:
    from pace.wire.addresses import parse_address, read_token
    from pace_fabric.runtime.daemon import HostDaemon

    place_of(place, "--scheduler")
    with HostDaemon(
        name,
        parse_address(place, "the scheduler"),
        bind=place_of(bind, "--bind"),
        advertise=advertise,
        model=model,
        replica=replica,
        shard=shard,
        token=read_token(token_file, TOKEN),
        serving=serving_context(tls[0], tls[1]),
        trusting=trusting_context(tls[2]),
        silence_s=silence_s,
    ) as running:
        until_stopped(running.address, lambda: running.refused)


def daemon(
    name: HostName,
    scheduler: SchedulerPlace,
    bind: Bind = "127.0.0.1:7081",
    advertise: Advertised = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
    silence_s: Silence = 20.0,
) -> None:
    """Run the daemon of a host that has workers, until SIGTERM or Ctrl-C."""
    with reported():
        tls = (tls_cert, tls_key, tls_ca)
        _run_host(name, scheduler, bind, advertise, None, tls, token_file, silence_s)


def serve(
    name: HostName,
    scheduler: SchedulerPlace,
    model: ModelFile,
    log: LogFile = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Save the model to this file, and start from it if it exists.",
            show_default="not saved",
            dir_okay=False,
        ),
    ] = None,
    state_s: Annotated[
        float, typer.Option(min=0, help="Seconds between two saves to --state; 0 saves after every commit.")
    ] = 10.0,
    replica: Annotated[
        bool, typer.Option("--replica", help="Hold the replica of the model instead of the model.")
    ] = False,
    serve_as: Annotated[
        str,
        typer.Option(
            help="Number format in which workers get the model: float32, float16 or bfloat16. Updates are "
            "added in float32."
        ),
    ] = "float32",
    shard: Annotated[
        str, typer.Option(help="N/M: this server holds part N of M equal parts of the model; N starts at 0.")
    ] = "0/1",
    bind: Bind = "127.0.0.1:7081",
    advertise: Advertised = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
    silence_s: Silence = 20.0,
) -> None:
    """Run the daemon of the host that holds the model, or its replica, until SIGTERM or Ctrl-C."""
    with reported():
        from pace_fabric.runtime.held_model import HeldModel, SavedModel, load_model
        from pace_fabric.runtime.shards import shard_range

        if serve_as not in ("float32", "float16", "bfloat16"):
            raise InvalidOptions(f"--serve-as {serve_as!r}: expected float32, float16 or bfloat16")
        number, shards = shard_of(shard)
        weights = load_model(model)
        first, last = shard_range(len(weights), number, shards)
        saved = None if state is None else SavedModel(state, every_s=state_s)
        held = HeldModel(
            weights[first:last].copy(),
            log=log,
            saved=saved,
            serve_as=serve_as,  # type: ignore[arg-type]  # checked above
        )
        tls = (tls_cert, tls_key, tls_ca)
        _run_host(
            name,
            scheduler,
            bind,
            advertise,
            held,
            tls,
            token_file,
            silence_s,
            replica=replica,
            shard=(number, shards),
        )


def status(
    scheduler: SchedulerPlace,
    token_file: TokenFile = None,
    tls_ca: Authority = None,
    as_json: JsonOption = False,
) -> None:
    """Print the state of a running scheduler: version, commits, waiting updates and hosts."""
    with reported():
        from pace.wire.addresses import parse_address, read_token
        from pace_fabric.runtime.scheduler_call import ask_status

        place_of(scheduler, "--scheduler")
        found = ask_status(
            parse_address(scheduler, "the scheduler"),
            token=read_token(token_file, TOKEN),
            ssl_context=trusting_context(tls_ca),
            timeout_s=ANSWERS_WITHIN_S,
        )
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"version {found['version']}: {counted(found['committed'], 'update')} in "
        f"{counted(found['commits'], 'commit')}, "
        f"{sum(found['dropped'].values())} dropped, {found['pending']} waiting, {found['planned']} under way"
    )
    for name, host in found["hosts"].items():
        typer.echo(f"{name}: {host['part']}, {host['received_bytes'] / 1e6:,.1f} MB received")
