"""``pace fabric``'s processes: scheduler, daemons on hosts, server and replica; and what they say."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pace.errors import InvalidOptions
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

if TYPE_CHECKING:
    from pace.runtime.fabric.held_model import HeldModel

TOKEN = "PACE_FABRIC_TOKEN"
SchedulerPlace = Annotated[str, typer.Option(help="HOST:PORT of the scheduler.")]
TokenFile = Annotated[
    Path | None,
    typer.Option(help=f"File with the token; {TOKEN} unless given.", exists=True, dir_okay=False),
]
HostName = Annotated[str, typer.Option("--name", help="Of this host, as the network document calls it.")]
Advertised = Annotated[str | None, typer.Option(help="Address under which other hosts reach this one.")]
ModelFile = Annotated[
    Path,
    typer.Option("--model", help="The first model: float32 in a .npy file.", exists=True, dir_okay=False),
]
LogFile = Annotated[Path | None, typer.Option("--log", help="Append the commit log here.")]
Silence = Annotated[float, typer.Option(min=1, help="Seconds without a sign of life that end a connection.")]


def shard_of(text: str) -> tuple[int, int]:
    """Return N and M of N/M."""
    number, slash, shards = text.partition("/")
    if not slash or not number.isdigit() or not shards.isdigit() or int(number) >= int(shards):
        raise InvalidOptions(f"--shard {text!r}: N/M with N from 0 to M - 1 is needed")
    return int(number), int(shards)


def scheduler(
    bind: Bind = "127.0.0.1:7080",
    delay_bound: Annotated[int | None, typer.Option(min=1, help="Delays stay below it.")] = None,
    late: Annotated[
        str, typer.Option(help="What becomes of late updates: drop, hold, downweight, or pace: none is.")
    ] = "drop",
    merge: Annotated[str, typer.Option(help="A commit adds a sum, or a weighted-mean.")] = "sum",
    momentum: Annotated[float, typer.Option(min=0, max=0.999, help="Of every commit.")] = 0.0,
    exact_momentum: Annotated[
        bool, typer.Option(help="Every update is a step of its own; sums are two vectors then.")
    ] = False,
    aggregators: Annotated[
        int | None, typer.Option(min=0, help="How many hosts may add at most; all unless given.")
    ] = None,
    divergence: Annotated[
        float | None, typer.Option(min=0, help="Keep a replica within this norm of the server.")
    ] = None,
    divergence_updates: Annotated[
        int | None, typer.Option(min=0, help="Keep a replica within so many updates of the server.")
    ] = None,
    replicate_patiently: Annotated[
        bool, typer.Option(help="Send nothing to the replica until half of that is used: fewer bytes.")
    ] = False,
    replica_buffer_bytes: Annotated[
        float, typer.Option(min=0, help="What a host may keep for the replica.", show_default="no limit")
    ] = float("inf"),
    network: Annotated[
        Path | None, typer.Option(help="A network document: what links carry at first.", exists=True)
    ] = None,
    oracle_lag_s: Annotated[
        float | None,
        typer.Option(
            min=0, help="For experiments: believe the document, so many seconds late, not receivers."
        ),
    ] = None,
    servers: Annotated[int, typer.Option(min=1, max=1024, help="Over how many the model is split.")] = 1,
    tick_s: Annotated[float, typer.Option(min=0.001, help="Plan at least so often.")] = 0.1,
    probe_s: Annotated[
        float, typer.Option(min=0.01, help="Probe links that no transfer told about for so long.")
    ] = 1.0,
    failover_s: Annotated[float, typer.Option(min=0, help="How long the server may be gone.")] = 2.0,
    transfer_log: Annotated[Path | None, typer.Option(help="Append a line for every transfer here.")] = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
) -> None:
    """Run the scheduler of a fabric until stopped; a new one at the same address goes on where it ended."""
    with reported():
        from pace.fabric.documents.batch import DivergenceLimit
        from pace.fabric.documents.reading import load_network
        from pace.runtime.fabric.scheduling.link_rates import MeasuredState, NetworkState, OracleState
        from pace.runtime.fabric.scheduling.scheduler import FabricScheduler
        from pace.runtime.fabric.scheduling.scheduler_options import SchedulerOptions
        from pace.runtime.fabric.scheduling.warm_up import warm_up
        from pace.wire.addresses import read_token

        if divergence is not None and divergence_updates is not None:
            raise InvalidOptions("--divergence and --divergence-updates are two bounds: give one")
        if late not in ("drop", "hold", "downweight", "pace"):
            raise InvalidOptions(f"--late {late!r}: drop, hold, downweight or pace is needed")
        if merge not in ("sum", "weighted-mean"):
            raise InvalidOptions(f"--merge {merge!r}: sum or weighted-mean is needed")
        limit = None
        if divergence is not None:
            limit = DivergenceLimit(kind="norm", max=divergence)
        elif divergence_updates is not None:
            limit = DivergenceLimit(kind="updates", max=divergence_updates)
        document = None if network is None else load_network(network)
        state: NetworkState = MeasuredState(document)
        if oracle_lag_s is not None:
            if document is None:
                raise InvalidOptions("--oracle-lag-s needs --network: that is the oracle")
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
    from pace.runtime.fabric.daemon import HostDaemon
    from pace.wire.addresses import parse_address, read_token

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
    """Run the daemon of a host with workers, until stopped."""
    with reported():
        tls = (tls_cert, tls_key, tls_ca)
        _run_host(name, scheduler, bind, advertise, None, tls, token_file, silence_s)


def serve(
    name: HostName,
    scheduler: SchedulerPlace,
    model: ModelFile,
    log: LogFile = None,
    replica: Annotated[bool, typer.Option(help="Hold the replica instead of the server's model.")] = False,
    shard: Annotated[
        str, typer.Option(help="N/M: this server holds the N-th of M equal parts, counted from 0.")
    ] = "0/1",
    bind: Bind = "127.0.0.1:7081",
    advertise: Advertised = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
    silence_s: Silence = 20.0,
) -> None:
    """Run the daemon of the host that holds the model, or its replica, until stopped."""
    with reported():
        from pace.runtime.fabric.held_model import HeldModel, load_model
        from pace.runtime.fabric.shards import shard_range

        number, shards = shard_of(shard)
        weights = load_model(model)
        first, last = shard_range(len(weights), number, shards)
        held = HeldModel(weights[first:last].copy(), log=log)
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
    """Show what a running scheduler does."""
    with reported():
        from pace.runtime.fabric.status import ask_status
        from pace.wire.addresses import parse_address, read_token

        found = ask_status(
            parse_address(scheduler, "the scheduler"),
            token=read_token(token_file, TOKEN),
            ssl_context=trusting_context(tls_ca),
        )
    if as_json:
        typer.echo(json.dumps(found))
        return
    typer.echo(
        f"version {found['version']}: {found['committed']} updates in {found['commits']} commits, "
        f"{sum(found['dropped'].values())} dropped, {found['pending']} waiting, {found['planned']} under way"
    )
    for name, host in found["hosts"].items():
        typer.echo(f"{name}: {host['part']}, {host['received_bytes'] / 1e6:,.1f} MB received")


def check_log(
    log: Annotated[Path, typer.Argument(help="A commit log.", exists=True, dir_okay=False)],
    delay_bound: Annotated[int | None, typer.Option(min=1, help="Delays must stay below it.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Check a commit log: versions without a gap, and every delay below the bound; exit 1 otherwise."""
    with reported():
        from pace.runtime.fabric.commit_log import LoggedCommit, read_log, violations

        lines = list(read_log(log))
        found = violations(lines, delay_bound)
    commits = [line for line in lines if isinstance(line, LoggedCommit)]
    if as_json:
        typer.echo(json.dumps({"commits": len(commits), "violations": found}))
    else:
        for violation in found:
            typer.echo(violation)
        greatest = max((delay for line in commits for delay in line.delays), default=0)
        typer.echo(f"{len(commits)} commits, greatest delay {greatest}, {len(found)} violations")
    if found:
        raise typer.Exit(1)
