"""``pace servers``: servers of their own processes, measured, used, killed; and connections through TLS."""

import json
import signal
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from pace.errors import CommunicationFailed
from pace.wire.addresses import ServerAddress
from pace.wire.handshake import Greeting
from pace_servers.runtime.layout import memory_of
from pace_servers.runtime.link import PushPullCall, ServerLink
from pace_servers.runtime.server import Server
from tests.pace_servers.runtime.links import WITHIN_S, Arrival, Worker, layout_of
from tests.runtime.certificates import NEEDS_OPENSSL, tls_contexts
from tests.runtime.programs import pace


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with a token."""
    path = tmp_path / "token"
    path.write_text("secret\n")
    return path


@pytest.fixture
def served(token_file: Path) -> Iterator[tuple[Any, Any]]:
    """A server in a process of its own, and where it listens."""
    with pace("servers", "serve", "--bind", "127.0.0.1:0", "--token-file", token_file) as program:
        host, _, port = program.said("listening on ").rpartition(":")
        yield program.process, type("Address", (), {"host": host, "port": int(port)})


@pytest.mark.slow
def test_a_server_process_is_measured_used_and_lost(served: tuple[Any, Any], token_file: Path) -> None:
    """The measured document is a cluster; sums are right; a killed server is named to all workers."""
    process, address = served
    measure = ["servers", "measure", "--servers", f"{address.host}:{address.port}", "--mebibytes", "2"]
    with pace(*measure, "--token-file", token_file, "--json") as program:
        found = program.result()
    assert found.returncode == 0, found.stderr
    cluster = json.loads(found.stdout)
    exchange = cluster["exchange"]
    assert (cluster["name"], exchange["servers"]) == ("1 measured server", 1)
    assert exchange["worker_bytes_per_s"] > 0
    assert exchange["round_trip_s"] > 0
    assert exchange["min_partition_bytes"] == 64 << 10
    with pace(*measure, environment={"PACE_SERVERS_TOKEN": "other"}) as program:
        refused = program.result()
    assert refused.returncode == 3
    assert "does not know the token" in refused.stderr
    workers = [Worker(address, rank, 2, token="secret") for rank in range(2)]
    tensors = [torch.ones(9), torch.ones(9)]
    for worker, tensor in zip(workers, tensors, strict=True):
        worker.link.announce(layout_of([tensor]))
    for arrival in [w.start(0, t) for w, t in zip(workers, tensors, strict=True)]:
        arrival.wait()
    assert torch.equal(tensors[0], torch.full((9,), 2.0))
    waiting = workers[0].start(0, tensors[0])
    process.send_signal(signal.SIGKILL)
    with pytest.raises(CommunicationFailed, match="server 0 is gone"):
        waiting.wait()
    assert workers[1].failed.wait(30)
    for worker in workers:
        worker.link.close()


@NEEDS_OPENSSL
def test_sums_through_tls(tmp_path: Path) -> None:
    """Sums are right through TLS, and a server that is not trusted gets nothing."""
    serving, trusting = tls_contexts(tmp_path)

    def link(rank: int, context: ssl.SSLContext) -> ServerLink:
        return ServerLink(
            ServerAddress(host=server.host, port=server.port, name="server 0"),
            Greeting(job="job", rank=rank, size=2, silence_s=20.0),
            token="secret",
            on_failure=lambda _reason: None,
            within_s=WITHIN_S,
            ssl_context=context,
        )

    with Server(token="secret", ssl_context=serving) as server:
        with pytest.raises(CommunicationFailed, match="cannot be trusted"):
            link(0, ssl.create_default_context())
        links = [link(rank, trusting) for rank in range(2)]
        tensors = [torch.arange(200_000.0), torch.arange(200_000.0)]
        for round_ in (1, 2):
            arrivals = [Arrival(), Arrival()]
            for mine, tensor, arrival in zip(links, tensors, arrivals, strict=True):
                if round_ == 1:
                    mine.announce(layout_of([tensor]))
                mine.start(PushPullCall(segment=0, round=round_, memory=memory_of(tensor), done=arrival.done))
            for arrival in arrivals:
                arrival.wait()
        assert torch.equal(tensors[0], torch.arange(200_000.0) * 4)
        for mine in links:
            mine.finish()
        for mine in links:
            mine.close()
