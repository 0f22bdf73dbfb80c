"""Names that must differ: the first repetition is found, and looking for it takes one pass."""

import json

import pytest
from pydantic import ValidationError

from pace.documents.base import repeated
from pace.fabric.documents.network import FabricNetwork

# So many that comparing each with every other would outlast the suite's patience.
MANY = 100_000


def test_the_first_repetition_is_named() -> None:
    """That which is there for the second time first, not what was there first."""
    assert repeated("abc") is None
    assert repeated("abccba") == "c"


@pytest.mark.parametrize("last", ["own", "repeated"])
def test_a_network_of_many_hosts_is_read(last: str) -> None:
    """Also where nothing is repeated, and where only the last host is."""
    names = [*(f"host{number}" for number in range(MANY)), "another" if last == "own" else "host0"]
    hosts = [{"name": name, "up_bytes_per_s": 1e9, "down_bytes_per_s": 1e9} for name in names]
    document = json.dumps({"hosts": hosts, "server": "host1", "aggregators": names[2:MANY]})
    if last == "own":
        assert len(FabricNetwork.model_validate_json(document).hosts) == MANY + 1
        return
    with pytest.raises(ValidationError, match='host "host0" is there twice'):
        FabricNetwork.model_validate_json(document)
