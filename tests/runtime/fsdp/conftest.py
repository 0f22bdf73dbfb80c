"""What ranks under ``fully_shard`` load beside what all ranks do."""

import pytest

from tests.runtime.launch import load_for_all


@pytest.fixture(autouse=True, scope="module")
def _loaded() -> None:
    """Load it once."""
    load_for_all("torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict", "pace.runtime.fsdp")
