"""What holds for all tests."""

import pytest

# A process that gets one of these last works on alone at the end, while the other has nothing left to do.
_LONGEST = ("test_soak.py", "test_delays.py", "test_real.py", "test_demo.py", "test_matrix.py")


# How often a test that races with the machine is tried again.
_RERUNS = 2


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files that take longest first, and have tests that race with the machine tried again.

    ``--reruns N`` decides for all tests instead.
    """
    items.sort(key=lambda item: item.path.name not in _LONGEST)
    for item in items:
        race = item.get_closest_marker("races_with_machine")
        if race is None:
            continue
        if not race.kwargs.get("reason"):
            raise pytest.UsageError(f"{item.nodeid}: races_with_machine needs reason=")
        if config.getoption("reruns") is None:
            item.add_marker(pytest.mark.flaky(reruns=_RERUNS))
