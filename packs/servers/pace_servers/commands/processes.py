"""``pace servers``: run parameter servers, and measure the links to them."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from pace.counted import counted
from pace.documents.cluster import Cluster
from pace.terminal.command_line import CommandLine, file_option, output_option
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

app = CommandLine(help="Run parameter servers, and measure the links to them.", no_args_is_help=True)

TokenFile = Annotated[
    Path | None,
    file_option(
        "File with the secret token that servers and workers share.",
        show_default="the variable PACE_SERVERS_TOKEN",
    ),
]


@app.command(epilog="Example: pace servers serve --bind 127.0.0.1:7070")
def serve(
    bind: Bind = "127.0.0.1:7070",
    workers: Annotated[
        int | None,
        typer.Option(min=1, help="Number of workers that every job must have.", show_default="any number"),
    ] = None,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    most_gib: Annotated[
        float, typer.Option(min=0.001, help="Largest memory of one job's tensors, in GiB.")
    ] = 64.0,
    checkpoints: Annotated[
        Path | None,
        typer.Option(
            help="Folder in which jobs may save embedding tables.",
            show_default="jobs save nothing",
            file_okay=False,
        ),
    ] = None,
) -> None:
    """Run a parameter server until SIGTERM or Ctrl-C. Jobs name it in ParameterServers(servers=[...])."""
    with reported():
        from pace.wire.addresses import read_token
        from pace_servers.runtime.server import Server

        server = Server(
            *place_of(bind, "--bind"),
            workers=workers,
            token=read_token(token_file),
            ssl_context=serving_context(tls_cert, tls_key),
            most_bytes=int(most_gib * (1 << 30)),
            checkpoints=checkpoints,
        )
        until_stopped(server.address)
        server.close(reason=f"the server {server.address} was stopped")


@app.command(epilog="Example: pace servers measure --servers 127.0.0.1:7070 -o cluster.json")
def measure(
    servers: Annotated[str, typer.Option(help="HOST:PORT of each parameter server, separated by commas.")],
    token_file: TokenFile = None,
    tls_ca: Authority = None,
    mebibytes: Annotated[int, typer.Option(min=1, help="Size of a measured push in MiB.")] = 32,
    output: Annotated[
        Path | None,
        output_option(
            "Write a cluster document (JSON) to this file, for `pace optimize --cluster`.",
            "-o",
            "--output",
            show_default="not written",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure the links to parameter servers: bandwidth, round-trip time, and fixed time of a segment."""
    with reported():
        from pace.wire.addresses import read_token
        from pace_servers.runtime.measure import measure_links
        from pace_servers.runtime.options import ParameterServers, complete_servers

        options = complete_servers(
            ParameterServers(
                servers=[place for place in servers.split(",") if place],
                token=read_token(token_file),
                ssl_context=trusting_context(tls_ca),
            )
        )
        found = measure_links(options, size_bytes=mebibytes << 20)
        cluster = Cluster(name=counted(found.servers, "measured server"), exchange=found.cost())
        document = cluster.to_json()
        if output is not None:
            output.write_bytes(document)
        if as_json:
            sys.stdout.buffer.write(document)
        else:
            typer.echo(
                f"{counted(found.servers, 'server')}: {found.bytes_per_s / 1e6:,.1f} MB/s each way, "
                f"round trip {found.round_trip_s * 1e6:,.0f} us, fixed time of a segment "
                f"{found.partition_s * 1e6:,.1f} us"
            )
