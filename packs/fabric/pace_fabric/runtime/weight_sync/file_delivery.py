"""Sends one file to many hosts; each is sent only the blocks that it lacks."""

import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from pace.errors import CommunicationFailed
from pace.wire.addresses import ServerAddress
from pace_fabric.runtime.connection import FabricLink, connect
from pace_fabric.runtime.messages import BlocksAnswer, BlocksCall, Message
from pace_fabric.runtime.weight_sync.block_file import BlockLayout, block_source, blocks_of
from pace_fabric.runtime.weight_sync.sender import WeightDelivery, WeightSender

_SILENCE_S = 20.0
_CONNECT_S = 30.0
# Blocks that a receiver lacks; None if it does not keep blocks in a file.
_Missing = tuple[int, ...] | None


def distribute_file(
    places: Sequence[ServerAddress],
    data: bytes | memoryview,
    version: int = 0,
    *,
    token: str | None = None,
    ssl_context: ssl.SSLContext | None = None,
    direct: bool = False,
    timeout_s: float = 3600.0,
) -> WeightDelivery:
    """Bring bytes to all receivers; those that fail are named in the report.

    Receivers that lack the same blocks form a chain. Chains are served one after the other. Whatever hosts
    do, it ends by the time-out: asking them takes at most half of it.
    """
    began = time.monotonic()
    deadline = began + timeout_s
    whole = memoryview(data).cast("B")
    layout = blocks_of(whole)
    asked: dict[str, _Missing] = {}
    failed: dict[str, str] = {}
    within_s = max((deadline - time.monotonic()) / 2, 0.1)

    def ask(place: ServerAddress) -> None:
        try:
            asked[place.name] = _ask(place, layout, token, ssl_context, within_s)
        except CommunicationFailed as error:
            failed[place.name] = str(error)

    with ThreadPoolExecutor(len(places)) as threads:
        list(threads.map(ask, places))
    report = WeightDelivery(
        seconds=0.0,
        order=(),
        sent_bytes=dict.fromkeys([WeightSender.SENDER, *(place.name for place in places)], 0),
        received_bytes=dict.fromkeys((place.name for place in places), 0),
        failed=failed,
    )
    for missing in sorted(set(asked.values()), key=lambda each: -1 if each is None else len(each)):
        chain = [place for place in places if place.name in asked and asked[place.name] == missing]
        left_s = deadline - time.monotonic()
        with WeightSender(chain, token=token, ssl_context=ssl_context, direct=direct) as sender:
            if missing is None:
                part = sender.distribute(whole, version, timeout_s=left_s)
            else:
                source = block_source(whole, layout, missing)
                part = sender.distribute_buckets(source, version, timeout_s=left_s)
        report = _joined(report, part)
    return replace(report, seconds=time.monotonic() - began)


def _ask(
    place: ServerAddress,
    layout: BlockLayout,
    token: str | None,
    ssl_context: ssl.SSLContext | None,
    within_s: float,
) -> _Missing:
    """Return the blocks that a receiver lacks."""
    deadline = time.monotonic() + within_s
    link = connect(
        place,
        token=token,
        silence_s=min(_SILENCE_S, within_s),
        within_s=min(_CONNECT_S, within_s),
        hello_s=0.0,
        ssl_context=ssl_context,
    )
    answers: list[BlocksAnswer] = []
    reasons: list[str] = []
    heard = threading.Event()

    def hear(_link: FabricLink, message: Message) -> None:
        if isinstance(message, BlocksAnswer):
            answers.append(message)
            heard.set()

    def end(_link: FabricLink, reason: str) -> None:
        reasons.append(reason)
        heard.set()

    link.start(hear, end)
    try:
        link.send(
            BlocksCall(size_bytes=layout.size_bytes, block_bytes=layout.block_bytes, sha256=layout.sha256)
        )
        if not heard.wait(max(deadline - time.monotonic(), 0.0)) or not answers:
            raise CommunicationFailed(reasons[0] if reasons else f"{place.name} does not say what it holds")
        return answers[0].missing
    finally:
        link.finish(max(deadline - time.monotonic(), 0.0))


def _joined(first: WeightDelivery, second: WeightDelivery) -> WeightDelivery:
    return WeightDelivery(
        seconds=first.seconds + second.seconds,
        order=first.order + second.order,
        sent_bytes={name: sent + second.sent_bytes.get(name, 0) for name, sent in first.sent_bytes.items()},
        received_bytes={
            name: had + second.received_bytes.get(name, 0) for name, had in first.received_bytes.items()
        },
        failed=first.failed | second.failed,
    )
