"""``pace fabric distribute`` and ``receive``: send one file of weights to many hosts."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from pace.errors import CommunicationFailed, InvalidOptions
from pace.terminal.command_line import file_argument, output_option
from pace.terminal.console import JsonOption
from pace.terminal.processes import (
    Authority,
    Bind,
    Certificate,
    CertificateKey,
    place_of,
    serving_context,
    stop_event,
    trusting_context,
)
from pace.terminal.reporting import WRONG, reported
from pace_fabric.commands.processes import TOKEN, TokenFile

# How often a waiting receiver checks whether it must stop.
_POLL_S = 0.2


def distribute(
    weights: Annotated[Path, file_argument("File of weights to send, of any format.")],
    to: Annotated[str, typer.Option(help="HOST:PORT of each receiver, separated by commas, fastest first.")],
    version: Annotated[int, typer.Option(min=0, help="Version number of the weights.")] = 0,
    direct: Annotated[
        bool,
        typer.Option(
            "--direct",
            help="For comparison: send to every host directly, without hosts that forward.",
        ),
    ] = False,
    timeout_s: Annotated[
        float, typer.Option(min=1, help="Seconds after which a host without the weights counts as failed.")
    ] = 3600.0,
    token_file: TokenFile = None,
    tls_ca: Authority = None,
    as_json: JsonOption = False,
) -> None:
    """Send weights to many hosts, which forward them to one another.

    Blocks that a host has already, from an earlier version or an interrupted run, are not sent again. Exits
    with 1 if a host does not receive them.
    """
    with reported():
        from pace.wire.addresses import parse_address, read_token
        from pace_fabric.runtime.weight_sync import WeightSender
        from pace_fabric.runtime.weight_sync.file_delivery import distribute_file

        given = [place for place in to.split(",") if place]
        for place in given:
            place_of(place, "--to")
        places = [parse_address(place, place) for place in given]
        if not places:
            raise InvalidOptions("--to: expected at least one HOST:PORT")
        token, context = read_token(token_file, TOKEN), trusting_context(tls_ca)
        report = distribute_file(
            places,
            weights.read_bytes(),
            version,
            token=token,
            ssl_context=context,
            direct=direct,
            timeout_s=timeout_s,
        )
    if as_json:
        typer.echo(json.dumps(asdict(report)))
    else:
        sent = report.sent_bytes[WeightSender.SENDER]
        typer.echo(
            f"{len(places) - len(report.failed)} hosts have version {version} after {report.seconds:.3g} s;"
            f" {sent / 1e6:,.1f} MB left this host"
        )
        for name, reason in report.failed.items():
            typer.echo(f"{name}: {reason}", err=True)
    if report.failed:
        raise typer.Exit(WRONG)


def receive(
    output: Annotated[
        Path, output_option("File for the weights; replaced whenever weights arrive.", "--output", "-o")
    ],
    bind: Bind = "127.0.0.1:7090",
    once: Annotated[bool, typer.Option("--once", help="Stop after the first weights.")] = False,
    token_file: TokenFile = None,
    tls_cert: Certificate = None,
    tls_key: CertificateKey = None,
    tls_ca: Authority = None,
) -> None:
    """Receive weights and forward them to other hosts, until SIGTERM or Ctrl-C.

    Weights that have not arrived completely are in OUTPUT.part. A receiver that is started again with the
    same output goes on from there.
    """
    with reported():
        from pace.wire.addresses import read_token
        from pace_fabric.runtime.weight_sync import WeightReceiver
        from pace_fabric.runtime.weight_sync.block_file import BlockFile

        file = BlockFile(output)
        with WeightReceiver(
            place_of(bind, "--bind"),
            token=read_token(token_file, TOKEN),
            serving=serving_context(tls_cert, tls_key),
            trusting=trusting_context(tls_ca),
            make_taker=file.taker,
            missing=file.missing,
        ) as receiver:
            stopped = stop_event()
            typer.echo(f"listening on {receiver.address}", err=True)
            while True:
                try:
                    arrived = receiver.receive(_POLL_S)
                except CommunicationFailed:
                    if stopped.is_set():
                        return
                    continue
                typer.echo(f"version {arrived.version}: {arrived.data:,} bytes in {output}")
                if once:
                    receiver.finish()
                    return
