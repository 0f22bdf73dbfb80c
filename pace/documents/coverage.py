"""The rule that every schedule keeps: segments cover each group's buffer exactly once and cut no element."""

from collections.abc import Sequence
from typing import Protocol

from pace.documents.profile import ELEMENT_BYTES, DType


class BufferDocument(Protocol):
    """A group of a schedule: whose gradients lie in one buffer."""

    @property
    def gradients(self) -> tuple[str, ...]:
        """Their names."""

    @property
    def size_bytes(self) -> int:
        """Of the buffer."""

    @property
    def dtype(self) -> DType:
        """Of its elements."""


class RangeDocument(Protocol):
    """A segment of a schedule: a range of a group's buffer."""

    @property
    def group(self) -> int:
        """The group's number."""

    @property
    def offset_bytes(self) -> int:
        """Where it begins."""

    @property
    def size_bytes(self) -> int:
        """Its length."""


def refuse_gaps(groups: Sequence[BufferDocument], segments: Sequence[RangeDocument]) -> None:
    """Raise ValueError unless every gradient is in one place and every byte in one segment."""
    names: set[str] = set()
    for number, group in enumerate(groups):
        if group.size_bytes % ELEMENT_BYTES[group.dtype]:
            raise ValueError(f"group {number}: {group.size_bytes} bytes cut an element of {group.dtype}")
        for name in group.gradients:
            if name in names:
                raise ValueError(f'gradient "{name}" is in two places')
            names.add(name)
    ranges: list[list[tuple[int, int]]] = [[] for _ in groups]
    for number, segment in enumerate(segments):
        if segment.group >= len(groups):
            raise ValueError(f"segment {number} belongs to group {segment.group}, which is no group")
        element = ELEMENT_BYTES[groups[segment.group].dtype]
        if segment.offset_bytes % element or segment.size_bytes % element:
            raise ValueError(f"segment {number} of group {segment.group} cuts an element")
        ranges[segment.group].append((segment.offset_bytes, segment.size_bytes))
    for number, (group, parts) in enumerate(zip(groups, ranges, strict=True)):
        covered = 0
        for offset, size in sorted(parts):
            if offset != covered:
                raise ValueError(
                    f"group {number}: segments cover byte {min(offset, covered)} twice or not at all"
                )
            covered += size
        if covered != group.size_bytes:
            raise ValueError(
                f"group {number}: segments cover {covered} bytes of a buffer of {group.size_bytes}"
            )
