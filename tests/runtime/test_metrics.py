"""Counters for Prometheus, scraped over HTTP from processes that train."""

import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.parser import text_string_to_metric_families

from pace.runtime.metrics import RuntimeCollector
from tests.runtime.launch import run_ranks
from tests.runtime.models import batches, build
from tests.runtime.schedules import shuffled_schedule
from tests.runtime.training import OPTIMIZERS, backward, trainable, wrap

STEPS = 25


def _scrape(port: int) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
        text = answer.read().decode()
    return {
        sample.name: (sample.labels, sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name != "pace_runtime_trial_seconds"
    }


def _train_and_scrape(rank: int, size: int, folder: str) -> Any:
    model = build("conv")
    schedule = shuffled_schedule(model, size, 3)
    optimizer = wrap("gloo", OPTIMIZERS["sgd"](trainable(model)), model, schedule=schedule, mode="auto")
    registry = CollectorRegistry()
    registry.register(RuntimeCollector(classifier=optimizer))
    server, thread = start_http_server(0, addr="127.0.0.1", registry=registry)
    scraped_once = Path(folder, "scraped")
    scrapes = [_scrape(server.server_port)]
    for step, batch in enumerate(batches("conv", STEPS, rank)):
        optimizer.zero_grad()
        if step == STEPS - 1 and rank == 1:
            # Rank 0's gradients stay in flight until it has scraped.
            deadline = time.monotonic() + 60
            while not scraped_once.exists() and time.monotonic() < deadline:
                time.sleep(0.01)
        backward(model(*batch))
        if step == STEPS - 1 and rank == 0:
            in_flight = threading.Thread(target=optimizer.synchronize)
            in_flight.start()
            scrapes.append(_scrape(server.server_port))
            assert in_flight.is_alive()
            scraped_once.touch()
            in_flight.join()
        optimizer.step()
    report = optimizer.report()
    scrapes.append(_scrape(server.server_port))
    optimizer.close()
    server.shutdown()
    server.server_close()
    thread.join()
    return scrapes, report


def test_a_training_process_is_scraped_without_waiting_for_it(tmp_path: Path) -> None:
    """Counters outlast changes of plan, unknowns are left out, and a scrape returns while gradients wait."""
    ranks = run_ranks(_train_and_scrape, 2, str(tmp_path), timeout_s=200)
    for rank, (scrapes, report) in enumerate(ranks):
        first, *_, last = scrapes
        labels = {"optimizer": "classifier", "rank": str(rank)}
        assert first["pace_runtime_steps_total"] == (labels, 0.0)
        assert "pace_runtime_iteration_seconds" not in first
        shown = {
            "pace_runtime_steps_total": STEPS,
            "pace_runtime_sent_bytes_total": report.sent_bytes,
            "pace_runtime_sent_segments_total": report.sent_segments,
            "pace_runtime_waited_seconds_total": report.waited_s,
            "pace_runtime_iteration_seconds": report.iteration_s,
            "pace_runtime_info": 1.0,
        }
        assert {name: last[name][1] for name in shown} == shown
        info = {"mode": report.mode, "order": report.order, "plan": report.source}
        assert info.items() <= last["pace_runtime_info"][0].items()
        # Three ways of running send the same bytes a step, so what was sent before the last change counts.
        round_bytes = sum(group.size_bytes for group in report.groups)
        assert report.sent_bytes == STEPS * round_bytes
        assert report.sent_segments > STEPS
        values = [scrape["pace_runtime_sent_bytes_total"][1] for scrape in scrapes]
        assert values == sorted(values)
    in_flight = ranks[0][0][1]
    assert in_flight["pace_runtime_steps_total"][1] == STEPS - 1
