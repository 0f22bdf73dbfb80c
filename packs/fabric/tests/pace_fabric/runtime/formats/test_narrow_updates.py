"""Updates and models in fewer bytes through a fabric: committed, added on the way, logged and replayed."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from pace.errors import InvalidUse
from pace_fabric.runtime.commit_log import violations
from pace_fabric.runtime.formats.error_feedback import ErrorFeedback, NarrowUpdate
from pace_fabric.runtime.formats.number_formats import encode, encoded_bytes
from pace_fabric.runtime.held_model import HeldModel, load_model
from pace_fabric.runtime.scheduling.scheduler_options import SchedulerOptions
from pace_fabric.runtime.update_records import NumberFormat
from tests.pace_fabric.runtime.processes import Fabric, even_links

NUMBERS = 5000


@pytest.mark.parametrize("servers", [1, 2])
def test_narrow_updates_are_added_and_replayed(tmp_path: Path, servers: int) -> None:
    """Six updates in four formats, added on the way: the log gives the model to the bit."""
    forms: tuple[NumberFormat, ...] = ("int8", "bfloat16", "float16", "float32", "int8", "bfloat16")
    options = SchedulerOptions(delay_bound=7, tick_s=0.02, servers=servers)
    rng = np.random.default_rng(0)
    with Fabric(tmp_path, 6, options, without_server=True, numbers=NUMBERS, state=even_links()) as fabric:
        tickets = []
        for number, form in enumerate(forms):
            update = NarrowUpdate.of(rng.normal(size=NUMBERS).astype(np.float32), form)
            tickets.append(fabric.client(number).push(update, 0))
            fabric.updates[tickets[-1].update] = update.dense()
        fabric.wait(lambda status: status["pending"] == 6)
        for server in fabric.servers:
            fabric.start(server)
        assert [ticket.wait().outcome for ticket in tickets] == ["committed"] * 6
        model = fabric.clients[0].get(at_least=6).weights
        expected = fabric.first + sum(fabric.updates.values())
        assert np.allclose(model, expected, atol=1e-5)
        assert violations(fabric.log(fabric.servers[0]), 7) == []
        if servers == 1:
            assert np.array_equal(fabric.replayed(fabric.log()), model)


@pytest.mark.parametrize(("form", "mean"), [("bfloat16", "bfloat16"), ("int8", "bfloat16")])
def test_means_of_narrow_updates_are_narrow(tmp_path: Path, form: NumberFormat, mean: NumberFormat) -> None:
    """Three members give rows in a format: all get the mean, in 16 bits, with the same bits."""
    rng = np.random.default_rng(0)
    given = [NarrowUpdate.of(rng.normal(size=NUMBERS).astype(np.float32), form) for _ in range(3)]
    with Fabric(tmp_path, 3, SchedulerOptions(tick_s=0.02), without_server=True) as fabric:
        clients = [fabric.client(number) for number in range(3)]
        with ThreadPoolExecutor(3) as threads:
            calls = [
                threads.submit(client.all_reduce, update, members=3, weight=weight)
                for client, update, weight in zip(clients, given, (1.0, 1.0, 2.0), strict=True)
            ]
            found = [call.result() for call in calls]
        received = sum(host["received_bytes"] for host in fabric.status()["hosts"].values())
    expected = np.average([each.dense() for each in given], axis=0, weights=(1, 1, 2))
    assert np.allclose(found[0], expected, rtol=2**-8, atol=1e-6)
    assert len({each.tobytes() for each in found}) == 1
    # Two contributions to the third member's host, and two means from there.
    assert received <= 2 * (encoded_bytes(NUMBERS, form) + encoded_bytes(NUMBERS, mean))


def test_models_are_served_in_16_bits_and_kept_in_32(tmp_path: Path) -> None:
    """Small updates add up on the server, though each is less than a step of bfloat16."""
    with Fabric(tmp_path, 1, SchedulerOptions(tick_s=0.02), without_server=True, numbers=100) as fabric:
        fabric.first = np.ones(100, dtype=np.float32)
        fabric.start_server(serve_as="bfloat16")
        worker = fabric.client(0)
        for version in range(8):
            worker.push(np.full(100, 2.0**-10, dtype=np.float32), version).wait()
        assert worker.get(at_least=8).weights.tolist() == [1.0 + 2.0**-7] * 100
        assert fabric.status()["hosts"]["h0"]["received_bytes"] == 200


def test_models_of_16_bits_are_read(tmp_path: Path) -> None:
    """Files of float16, and of bfloat16 as ml_dtypes writes them, keep their values; others are refused."""
    row = np.array([1.5, -2.25, 3e4], dtype=np.float32)
    np.save(tmp_path / "half.npy", row.astype(np.float16))
    assert load_model(tmp_path / "half.npy").tolist() == row.tolist()
    narrow = np.frombuffer(bytes(encode(row, "bfloat16")), dtype="V2")
    np.save(tmp_path / "brain.npy", narrow)
    assert load_model(tmp_path / "brain.npy").tolist() == [1.5, -2.25, 29952.0]
    np.save(tmp_path / "double.npy", row.astype(np.float64))
    with pytest.raises(InvalidUse, match="float64; numbers of float32"):
        load_model(tmp_path / "double.npy")


def test_a_model_beyond_float16_is_served_whole() -> None:
    """Weights that float16 cannot hold are served as float32, and the log event says so."""
    model = HeldModel(np.array([7e4, 1.0], dtype=np.float32), serve_as="float16")
    data, form = model.snapshot(whole=False)
    assert (form, np.frombuffer(data, np.float32).tolist()) == ("float32", [7e4, 1.0])


def test_feedback_trains_where_rounding_alone_does_not(tmp_path: Path) -> None:
    """Twenty updates of which each rounds to nothing beside a large one: with feedback they arrive."""
    with Fabric(tmp_path, 1, SchedulerOptions(tick_s=0.02), numbers=10) as fabric:
        worker, feedback = fabric.client(0), ErrorFeedback("int8")
        update = np.full(10, 0.002, dtype=np.float32)
        update[0] = 1.0
        for version in range(20):
            assert worker.push(feedback.compress(update), version).wait().outcome == "committed"
        moved = worker.get(at_least=20).weights - fabric.first
    assert moved[0] == pytest.approx(20.0, rel=1e-3)
    assert moved[1:] == pytest.approx(np.full(9, 0.04), abs=0.005)
