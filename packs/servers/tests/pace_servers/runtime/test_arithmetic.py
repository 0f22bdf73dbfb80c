"""Sums in flat memory: the same numbers as torch's."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pace_servers.runtime.arithmetic import ITEM_BYTES, Flat


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(sorted(ITEM_BYTES)),
    st.integers(1, 40_000),
    st.tuples(st.integers(0, 40_000), st.integers(0, 40_000)),
    st.booleans(),
)
def test_flat_memory_adds_and_copies_as_torch_does(
    dtype: str, elements: int, bounds: tuple[int, int], add: bool
) -> None:
    """Any part, any dtype; half precision into float32 as well."""
    item = ITEM_BYTES[dtype]
    start, stop = sorted(bound % (elements + 1) for bound in bounds)
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    into = Flat.zeros(elements * ITEM_BYTES[wide], wide)
    values = Flat.zeros(elements * item, dtype)
    expected = (torch.arange(elements) % 90).to(getattr(torch, wide))
    more = (torch.arange(elements) % 37).to(getattr(torch, dtype))
    torch.frombuffer(into.memory, dtype=getattr(torch, wide)).copy_(expected)
    torch.frombuffer(values.memory, dtype=getattr(torch, dtype)).copy_(more)
    wider = ITEM_BYTES[wide]
    (into.add if add else into.copy)(values, start * wider, stop * wider, start * item)
    if add:
        expected[start:stop] += more[start:stop]
    else:
        expected[start:stop] = more[start:stop].to(expected.dtype)
    assert torch.equal(torch.frombuffer(into.memory, dtype=getattr(torch, wide)), expected)
