"""Networks: read from files, plain or gzipped, and refused by name."""

import gzip
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.reading import load_network
from pace_fabric.errors import InvalidFabric

EXAMPLE = Path(__file__).parents[3] / "examples" / "network.json"
# So many that comparing each with every other would outlast the suite's patience.
MANY = 100_000


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


def test_a_gzipped_network_is_the_network(tmp_path: Path) -> None:
    """Whatever the name of its file; damage names the file."""
    packed = gzip.compress(EXAMPLE.read_bytes())
    file = tmp_path / "network.json"
    file.write_bytes(packed)
    assert load_network(file) == load_network(EXAMPLE)
    file.write_bytes(packed[:-20])
    with pytest.raises(InvalidFabric, match=r"network.json: the gzip stream is cut off"):
        load_network(file)


def test_another_kind_of_document_is_told_in_one_line(tmp_path: Path) -> None:
    """A profile where a network belongs."""
    file = tmp_path / "profile.json"
    file.write_text('{"name": "job", "workers": 2, "ops": [], "gradients": []}')
    with pytest.raises(InvalidFabric, match="this is another kind of document: it has no"):
        load_network(file)
