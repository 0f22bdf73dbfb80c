"""The study that runs torch's own overlap pass, on a graph of one layer in the format of the simulator."""

import textwrap
from pathlib import Path

import pytest

from benchmarks.studies.sharded_graphs.traced import run_pass
from pace.formats.node_list import read_node_list, read_times

pytestmark = pytest.mark.filterwarnings("ignore:.*is deprecated:FutureWarning")
REPRO = """
    import os
    os.environ["TORCH_TRACE"] = "/nowhere"
    import torch
    import triton
    from torch import device

    class Repro(torch.nn.Module):
        def forward(self, shard, batch):
            whole = torch.ops._c10d_functional.all_gather_into_tensor.default(shard, 2, "7")
            whole = torch.ops._c10d_functional.wait_tensor.default(whole)
            scale = torch.ops.aten.full.default([64, 8], 2, device = device(type='cuda', index=0))
            return (torch.ops.aten.mm.default(batch, whole), scale)

    def load_args(reader):
        buf0 = reader.storage(None, 4096, device=device(type='cuda', index=0))
        reader.tensor(buf0, (32, 16), dtype=torch.float32, is_leaf=True)
        buf1 = reader.storage(None, 2048, device=device(type='cuda', index=0))
        reader.tensor(buf1, (8, 64), (64, 1), is_leaf=True)

    def get_pg_config():
        return {'7': {'size': 2, 'rank': 0}}

    def get_colls_estimations_file():
        return "times.table"

    def get_colls_group_mapping():
        return {'7': '0'}
"""
TABLE = """
  Group    Group Size  Collective                 1MB (ms)    2MB (ms)
-------  ------------  -----------------------  ----------  ----------
      0             8  all_gather_into_tensor          1.5         2.5
      1             8  all_gather_into_tensor          9.0         9.5
"""


def test_a_graph_is_traced_and_timed_before_and_after_the_pass(tmp_path: Path) -> None:
    """A gather takes 1.5 ms; the product reads 6,144 bytes and writes 512; the constant is 2,048 bytes."""
    path = tmp_path / "repro_tiny.py"
    path.write_text(textwrap.dedent(REPRO))
    (tmp_path / "times.table").write_text(TABLE.strip("\n"))
    graphs = tmp_path / "graphs"
    graphs.mkdir()
    found = run_pass(path, "tiny", graphs)
    moved_bytes = 2048 + 4096 + 512 + 2048
    expected = 1.5 + moved_bytes / 3350e9 * 1e3
    assert found["as_traced_ms"] == pytest.approx(expected, rel=1e-6)
    assert found["torch_ms"] <= found["as_traced_ms"]
    assert found["calls"] == 1
    assert found["torch_peak_gb"] == pytest.approx((2048 + 2048 + 4096 + 4096 + 512 + 2048) / 1e9, rel=0.5)
    graph = read_node_list(
        graphs / "tiny.json.gz", times=[read_times(graphs / "tiny.table")], copy_bytes_per_s=1e12
    )
    (gather,) = (node.collective for node in graph.nodes if node.collective is not None)
    assert (gather.op, gather.input_bytes, gather.output_bytes, gather.dtype) == (
        "all-gather",
        2048,
        4096,
        "float32",
    )
    assert graph.communicators[0].ranks == 2
