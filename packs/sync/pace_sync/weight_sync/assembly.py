"""One version of a state dict at its receiver, put together from boxes of one or several senders."""

import threading
from collections.abc import Mapping

import torch

from pace.errors import ScheduleMismatch
from pace_sync.weight_sync.local_shards import LocalShard
from pace_sync.weight_sync.state_layout import StateTensor

# Where boxes begin and end, by dimension.
Spans = tuple[tuple[int, int], ...]


def spans_of(begin: tuple[int, ...], shape: tuple[int, ...]) -> Spans:
    """Return where a box begins and ends, by dimension."""
    return tuple((low, low + length) for low, length in zip(begin, shape, strict=True))


def common(left: Spans, right: Spans) -> Spans | None:
    """Return what two boxes have in common; None if that is nothing."""
    found = tuple((max(a[0], b[0]), min(a[1], b[1])) for a, b in zip(left, right, strict=True))
    return found if all(low < high for low, high in found) else None


def _volume(spans: Spans) -> int:
    count = 1
    for low, high in spans:
        count *= high - low
    return count


class StateAssembly:
    """New tensors that fill up; the old version is never touched.

    Orders are claimed before their first byte, so two senders of the same elements are refused. One thread
    puts boxes in; others may claim and release meanwhile.

    Parameters
    ----------
    expected
        What is wanted of each tensor.

    Attributes
    ----------
    is_over
        Whether it was whole: the next part begins another one.
    """

    def __init__(self, expected: Mapping[str, LocalShard], version: int, plan_sha256: str | None) -> None:
        self.version = version
        self.is_over = False
        self.plan_sha256 = plan_sha256
        self._expected = dict(expected)
        self._lock = threading.Lock()
        self._claims: dict[str, list[tuple[str, Spans, str]]] = {}
        self._placed: dict[str, dict[str, int]] = {}
        self._made: dict[str, torch.Tensor] = {}

    def claim(self, key: str, sender: str, boxes: tuple[StateTensor, ...]) -> None:
        """Say what an order brings; raises ScheduleMismatch for what is not wanted, or comes already."""
        claimed = []
        for box in boxes:
            shard = self._expected.get(box.name)
            if shard is None:
                raise ScheduleMismatch(f'the sender has tensor "{box.name}", which is not expected here')
            if box.whole_shape != shard.whole:
                raise ScheduleMismatch(
                    f'tensor "{box.name}" has shape {box.whole_shape} at the sender, but {shard.whole} here'
                )
            part = self._wanted(box, shard)
            if part is not None:
                claimed.append((box.name, part, sender))
            elif self.plan_sha256 is not None:
                raise ScheduleMismatch(
                    f'the sender sends a box of tensor "{box.name}" that is not wanted here'
                )
        with self._lock:
            taken: dict[str, list[tuple[Spans, str]]] = {}
            for claims in self._claims.values():
                for name, spans, owner in claims:
                    taken.setdefault(name, []).append((spans, owner))
            for name, spans, _ in claimed:
                for other, owner in taken.get(name, ()):
                    if common(spans, other) is not None:
                        raise ScheduleMismatch(f'"{owner}" and "{sender}" both send a part of "{name}"')
                taken.setdefault(name, []).append((spans, sender))
            self._claims[key] = claimed
            self._placed[key] = {}

    def release(self, key: str) -> None:
        """Forget an order and what it brought."""
        with self._lock:
            self._claims.pop(key, None)
            self._placed.pop(key, None)

    def device(self, name: str) -> torch.device:
        """Return where a tensor is wanted."""
        return self._expected[name].device

    @property
    def is_sharded(self) -> bool:
        """Whether shards are wanted of some tensor."""
        return any(shard.mesh is not None for shard in self._expected.values())

    def made(self, name: str) -> torch.Tensor:
        """Return a tensor as far as it is here."""
        return self._made[name]

    def put(self, key: str, box: StateTensor, data: torch.Tensor) -> None:
        """Copy and cast a box that has arrived."""
        shard = self._expected[box.name]
        part = self._wanted(box, shard)
        if part is None:
            return
        if data.shape == shard.shape and _volume(part) == data.numel() and box.name not in self._made:
            self._made[box.name] = data.to(shard.dtype)
        else:
            if box.name not in self._made:
                self._made[box.name] = torch.empty(shard.shape, dtype=shard.dtype, device=shard.device)
            source, target = data, self._made[box.name]
            for axis, (low, high) in enumerate(part):
                source = source.narrow(axis, low - box.origin[axis], high - low)
                target = target.narrow(axis, low - shard.begin[axis], high - low)
            target.copy_(source)
        with self._lock:
            placed = self._placed.get(key)
            if placed is not None:
                placed[box.name] = placed.get(box.name, 0) + _volume(part)

    def result(self) -> dict[str, torch.Tensor] | None:
        """Return the state dict, in the order in which it is expected; None while elements are missing."""
        with self._lock:
            total: dict[str, int] = {}
            for placed in self._placed.values():
                for name, count in placed.items():
                    total[name] = total.get(name, 0) + count
        found = {}
        for name, shard in self._expected.items():
            wanted = _volume(spans_of(shard.begin, shard.shape))
            if total.get(name, 0) < wanted:
                return None
            if not wanted:
                self._made[name] = torch.empty(shard.shape, dtype=shard.dtype, device=shard.device)
            found[name] = shard.made(self._made[name])
        self.is_over = True
        return found

    @staticmethod
    def _wanted(box: StateTensor, shard: LocalShard) -> Spans | None:
        return common(spans_of(box.origin, box.shape), spans_of(shard.begin, shard.shape))
