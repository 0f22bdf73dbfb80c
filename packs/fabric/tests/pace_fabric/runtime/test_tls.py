"""A fabric whose processes talk through TLS: the same results, and nobody who is not trusted is let in."""

import ssl
from pathlib import Path

import numpy as np
import pytest

from pace.errors import CommunicationFailed
from pace_fabric.runtime.client import FabricClient
from pace_fabric.runtime.commit_log import violations
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.weight_sync import WeightReceiver, WeightSender
from tests.pace_fabric.runtime.processes import TOKEN, WITHIN_S, Fabric
from tests.pace_fabric.runtime.test_weight_sync import DATA, place
from tests.runtime.certificates import NEEDS_OPENSSL, tls_contexts


@NEEDS_OPENSSL
def test_updates_are_added_and_committed_through_tls(tmp_path: Path) -> None:
    """Sums on the way, commits and models go through TLS; a daemon that is not trusted gets nothing."""
    options = SchedulerOptions(delay_bound=5, tick_s=0.02)
    with Fabric(
        tmp_path, 4, options, without_server=True, numbers=50_000, tls=tls_contexts(tmp_path)
    ) as fabric:
        with pytest.raises(CommunicationFailed, match="cannot be trusted"):
            FabricClient(fabric.place("h0"), token=TOKEN, ssl_context=ssl.create_default_context())
        tickets = [fabric.push(fabric.client(number)) for number in range(4)]
        fabric.wait(lambda status: status["pending"] == 4)
        fabric.start("server")
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 4
        lines = fabric.log()
        assert violations(lines, 5) == []
        assert np.array_equal(fabric.clients[0].get(at_least=4).weights, fabric.replayed(lines))
        status = fabric.status()
        assert status["hosts"]["server"]["received_bytes"] == status["planned_server_bytes"]


@NEEDS_OPENSSL
def test_weights_are_handed_on_through_tls(tmp_path: Path) -> None:
    """Each of two receivers serves and calls through TLS; a sender that does not trust them names them."""
    serving, trusting = tls_contexts(tmp_path)

    def receiver() -> WeightReceiver:
        return WeightReceiver(token=TOKEN, serving=serving, trusting=trusting)

    with receiver() as first, receiver() as second:
        places = [place(first.address, "first"), place(second.address, "second")]
        with WeightSender(places, token=TOKEN, ssl_context=ssl.create_default_context()) as stranger:
            failed = stranger.distribute(DATA, 1, timeout_s=WITHIN_S).failed
            assert all("cannot be trusted" in failed[name] for name in ("first", "second"))
        with WeightSender(places, token=TOKEN, ssl_context=trusting) as sender:
            report = sender.distribute(DATA, 2, timeout_s=WITHIN_S)
            assert report.failed == {}
            assert report.sent_bytes == {"sender": len(DATA), "first": len(DATA), "second": 0}
        for each in (first, second):
            weights = each.receive(WITHIN_S)
            assert (weights.version, bytes(weights.data)) == (2, DATA)


@NEEDS_OPENSSL
def test_a_caller_in_the_clear_learns_that_a_receiver_speaks_tls(tmp_path: Path) -> None:
    """A receiver with TLS says nothing first: workers and senders learn what may be the matter."""
    serving, _ = tls_contexts(tmp_path)
    with WeightReceiver(token=TOKEN, serving=serving) as receiver:
        where = place(receiver.address, "host")
        with pytest.raises(CommunicationFailed, match="if it uses TLS, give its certificate authority"):
            FabricClient(where, token=TOKEN, within_s=0.3, silence_s=0.3)
        with WeightSender([where], token=TOKEN) as sender:
            failed = sender.distribute(DATA, 1, timeout_s=0.6).failed
        assert "if it uses TLS, give its certificate authority" in failed["host"]
