"""What holds for all tests."""

import pytest

# A process that gets one of these last works on alone at the end, while the other has nothing left to do.
_LONGEST = ("test_soak.py", "test_delays.py", "test_real.py", "test_demo.py", "test_matrix.py")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files that take longest first."""
    items.sort(key=lambda item: item.path.name not in _LONGEST)
