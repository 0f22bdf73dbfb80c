"""All-reduce costs from nccl-tests, OSU, CSV and several logs together."""

import gzip
import json
from pathlib import Path

import pytest

from pace.errors import FormatError, InvalidOptions
from pace.formats.fit import fit_cost, read_cost_log
from pace.formats.reading import FormatWarning

NCCL_HEADER = """\
# nThread 1 nGpus 1 minBytes 1024 maxBytes 1048576 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1
# Using devices
#  Rank  0 Group  0 Pid   6899 on node-a device  0 [0000:04:00] NVIDIA H100
#  Rank  1 Group  0 Pid   6900 on node-a device  1 [0000:05:00] NVIDIA H100
#  Rank  2 Group  0 Pid   6901 on node-b device  0 [0000:04:00] NVIDIA H100
#  Rank  3 Group  0 Pid   6902 on node-b device  1 [0000:05:00] NVIDIA H100
#
#  out-of-place  in-place
#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
#  (B)  (elements)  (us)  (GB/s)  (GB/s)  (us)  (GB/s)  (GB/s)
"""
NCCL_ROWS = """\
        1024  256  float  sum  -1  28.05  0.04  0.05  0  27.50  0.04  0.06  0
     1048576  262144  float  sum  -1  93.80  11.18  16.77  0  1.2e+02  11.40  17.10  N/A
"""
OSU = """\
58.145s: job.exception type=cancel severity=0 interrupted by ctrl-C
# OSU MPI-CUDA Allreduce Latency Test v5.8
# Size       Avg Latency(us)  Min Latency(us)
4                     337.07        300.00
1048576              3982.10       3900.00
START OF JOBSPEC
{"resources": [1, 2]}
"""


def _file(folder: Path, text: str, name: str = "log") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_of_a_log_of_several_collectives_the_all_reduces_are_taken(tmp_path: Path) -> None:
    """As a script writes that runs one test after another; a log without all-reduces is refused."""
    start, gathered = (
        "# Collective test starting: {}_perf\n",
        NCCL_ROWS.replace("sum", "none").replace("27.50", "9"),
    )
    reduces = start.format("all_reduce") + NCCL_HEADER + NCCL_ROWS
    gathers = start.format("all_gather") + NCCL_HEADER + gathered
    alone = read_cost_log(_file(tmp_path, reduces))
    for text in (gathers + reduces, reduces + gathers, gathers + reduces + gathers):
        log = read_cost_log(_file(tmp_path, text))
        assert (log.samples, log.workers) == (alone.samples, 4)
    with pytest.raises(FormatError, match="measures all_gather, not all_reduce"):
        read_cost_log(_file(tmp_path, gathers))
    osu_gathers = "# OSU MPI Allgather Latency Test v5.8\n# Size       Avg Latency(us)\n4  1.00\n8  2.00\n"
    alone = read_cost_log(_file(tmp_path, OSU))
    assert read_cost_log(_file(tmp_path, osu_gathers + OSU)).samples == alone.samples


def test_nccl_table_gives_in_place_times_and_the_number_of_ranks(tmp_path: Path) -> None:
    """Microseconds become seconds; scientific notation and N/A in the last column are no obstacle."""
    log = read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS))
    assert log.tool == "nccl-tests"
    assert log.workers == 4
    assert dict(log.samples) == pytest.approx({1024: 27.5e-6, 1048576: 120e-6})


@pytest.mark.parametrize("label", ["0: ", "12:", "[1,0]<stdout>:"])
def test_rank_labels_are_taken_off(tmp_path: Path, label: str) -> None:
    """What srun --label and mpirun --tag-output put before each line changes nothing."""
    text = "".join(label + line for line in (NCCL_HEADER + NCCL_ROWS).splitlines(keepends=True))
    plain = read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS))
    assert read_cost_log(_file(tmp_path, text)).samples == plain.samples


def test_not_applicable_times_are_skipped(tmp_path: Path) -> None:
    """A side that was not run gives way to the other; a row without times gives no sample."""
    rows = NCCL_ROWS + (
        "  2048  512  float  sum  -1  30.00  0.04  0.05  0  N/A  N/A  N/A N/A\n"
        "  4096  1024  float  sum  -1  N/A  N/A  N/A  N/A  N/A  N/A  N/A N/A\n"
    )
    log = read_cost_log(_file(tmp_path, NCCL_HEADER + rows))
    assert dict(log.samples[2:]) == pytest.approx({2048: 30e-6})


INFO = "node-a:100:123 [0] NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..15}\n"
TRACE = "node-b:6901:7 [1] 12.5 enqueue.cc:12 NCCL TRACE 1 2 3\n"
WARN = "\n[2025-01-01 10:00:00] node-b:6901:7 [1] misc/socket.cc:50 NCCL WARN timed out after 34 ms\n"
OTHER = "[1700000000.1] [node-a:100:0] UCX  WARN  of 12 13\n"


@pytest.mark.parametrize(
    "cut",
    [
        ("  -1", "  -1" + INFO + INFO),  # the tool pauses behind these two cells
        ("  0  ", "  0" + INFO + TRACE + "  "),
        ("  -1", "  -1" + WARN),
        ("  -1", "  -1" + INFO.replace("node-a", "10-0-0-1")),
        ("  -1", "  -1" + INFO.replace("node-a", "another")),
        ("  -1", "  -1NCCL version 2.18.3+cuda12.2\n"),
        ("  -1", "  -1 NCCL CALL: " + TRACE),
        ("  -1", "  -1" + OTHER),
        ("  0  ", "  0" + OTHER + "  "),
        ("28.05", "28.0" + INFO + "5"),  # mpirun hands over what it has
        ("      1024  ", "      10" + INFO + "24  "),
        ("  float", "  fl" + INFO + TRACE + "oat"),
        ("        1024", TRACE[:-1] + "   1024"),
        ("\n     1048576", INFO + "\n     1048576"),
        ("  0\n", "  0" + INFO + "\n"),
        ("  -1  28.05", "  -1 read 7 28 files 28.05"),
    ],
)
def test_other_text_inside_a_row_changes_no_time(tmp_path: Path, cut: tuple[str, str]) -> None:
    """NCCL_DEBUG and libraries print while a row is being printed, between its cells and in them."""
    whole = read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS))
    assert cut[0] in NCCL_ROWS
    log = read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS.replace(*cut)))
    assert dict(log.samples) == pytest.approx(dict(whole.samples))


@pytest.mark.parametrize(
    "cut",
    [
        ("  28.05", "  28." + OTHER + "05"),
        ("  1024  ", "  10" + OTHER + "24  "),
        ("  float", "  fl 3 4 float none 5" + OTHER + "oat"),
        ("  -1  28.05", "  -1  1024  28.05"),  # a number too many
        ("  27.50", "  7.50"),
        ("  27.50", "  0.00"),
        ("  0.04  0.05  0  27", "  0.04  0.05" + OTHER + "27"),
    ],
)
def test_a_row_that_other_text_spoils_is_refused(tmp_path: Path, cut: tuple[str, str]) -> None:
    """Bandwidths are 1,024 bytes over the time, so no other number passes for a time."""
    assert cut[0] in NCCL_ROWS
    with pytest.raises(FormatError, match=r"line \d+: .*(other text|not an all-reduce)"):
        read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS.replace(*cut)))


def test_a_last_row_that_is_cut_off_is_left_out_with_a_warning(tmp_path: Path) -> None:
    """The job was ended while it measured."""
    text = NCCL_HEADER + NCCL_ROWS + "     2097152  524288  float  sum  -1" + INFO
    with pytest.warns(FormatWarning, match="line 13: the last row, of 2097152 bytes, is not complete"):
        assert len(read_cost_log(_file(tmp_path, text)).samples) == 2


def test_nccl_json_whose_times_and_bandwidths_differ_is_refused(tmp_path: Path) -> None:
    """A time in milliseconds, say."""
    side = {"time": 0.0275, "alg_bw": 0.04, "bus_bw": 0.06}
    document = {"results": [{"size": 1024, "redop": "sum", "in_place": side}]}
    with pytest.raises(FormatError, match=r"results\[0\]: 1024 bytes in 0.0275 us are 37.2 GB/s"):
        read_cost_log(_file(tmp_path, json.dumps(document)))


@pytest.mark.parametrize(
    ("cut", "is_whole"),
    [
        (("337.07 ", "337" + INFO + ".07 "), True),
        (("\n1048576 ", "\n" + INFO + "1048" + INFO + "576 "), True),
        (("\n1048576 ", "\n1048" + INFO + "576 "), False),
        (("337.07 ", "3" + OTHER + "37.07 "), False),
        (("337.07 ", "337.0" + OTHER + "7 "), False),
        (("\n1048576 ", "\n10485" + OTHER + "76 "), False),
        (("3982.10  ", "3982.10  " + OTHER), False),
        (("3900.00", "3900.00 7"), False),
    ],
)
def test_other_text_inside_a_row_of_osu(tmp_path: Path, cut: tuple[str, str], is_whole: bool) -> None:
    """What NCCL printed is taken out; a row that something else cut is no row of fewer cells."""
    path = _file(tmp_path, OSU.replace("300.00\n", "300.00\n8  340.00  310.00\n").replace(*cut))
    if is_whole:
        assert dict(read_cost_log(path).samples) == pytest.approx(
            {4: 337.07e-6, 8: 340e-6, 1048576: 3982.1e-6}
        )
        return
    with pytest.raises(FormatError, match=r"line \d+: other text cut a row"):
        read_cost_log(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "bytes,seconds\n1024,33.1\n1048576,42.9\n",
            "1,048,576 bytes would take 42.9 s.*slower than 10 Mbit",
        ),
        ("bytes,us\n1048576,1.048576e6\n2097152,2.097152e6\n", "2,097,152 bytes would take 2.1 s"),
        ("bytes,us\n1048576,0.0331\n", "faster than 20 TB/s: check which columns"),
    ],
)
def test_a_cost_of_no_network_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """Times that are sizes, or of another unit."""
    with pytest.raises(FormatError, match=reason):
        fit_cost([_file(tmp_path, text)], workers=2)


def test_old_nccl_tables_have_no_root(tmp_path: Path) -> None:
    """Columns are found by the header, not by counting."""
    text = (
        "#  size  count  type  redop  time  algbw  busbw  error  time  algbw  busbw  error\n"
        "  1024  256  float  sum  28.05  0.04  0.05  0e+00  27.50  0.04  0.06  0e+00\n"
    )
    assert dict(read_cost_log(_file(tmp_path, text)).samples) == pytest.approx({1024: 27.5e-6})


def test_nccl_json_gives_the_same_as_the_table(tmp_path: Path) -> None:
    """The document of -J: in-place preferred, out-of-place where it is null."""
    document = {
        "version": 1,
        "args": ["./build/all_reduce_perf", "-b", "1K"],
        "config": {"devices": [{"rank": rank} for rank in range(4)]},
        "results": [
            {
                "size": 1024,
                "redop": "sum",
                "out_of_place": {"time": 28.05, "alg_bw": 0.04, "bus_bw": 0.05, "nwrong": 0.0},
                "in_place": {"time": 27.5, "alg_bw": 0.04, "bus_bw": 0.06, "nwrong": None},
            },
            {
                "size": 2048,
                "redop": "sum",
                "out_of_place": {"time": 31.0, "alg_bw": 0.04, "bus_bw": 0.05, "nwrong": 0.0},
                "in_place": {"time": "nan", "alg_bw": 0.04, "bus_bw": 0.06, "nwrong": None},
            },
        ],
    }
    log = read_cost_log(_file(tmp_path, json.dumps(document)))
    assert log.workers == 4
    assert dict(log.samples) == pytest.approx({1024: 27.5e-6, 2048: 31e-6})


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (NCCL_HEADER.replace("redop", "     ") + NCCL_ROWS, "line 9: the table has no reduction"),
        (NCCL_HEADER.replace(" time", "cputime") + NCCL_ROWS, "no device time"),
        ("# Collective test starting: alltoall_perf\n# busbw\n", "line 1: measures alltoall"),
        (NCCL_HEADER, "no all-reduce measurements found"),
        (NCCL_HEADER + NCCL_ROWS.replace(" -1 ", " 0 "), "has a root, rank 0: not an all-reduce"),
        (NCCL_HEADER + NCCL_ROWS.replace(" 256 ", " 64 "), "1024 bytes are not 64 elements"),
        (NCCL_HEADER + NCCL_ROWS.replace("27.50", "-7.50"), "line 11: time is '-7.50'"),
        ('{"bus_bw": 1}', 'no "results"'),
        ('{"bus_bw": 1, "results": [{"size": -4, "redop": "sum"}]}', r"results\[0\]: size is -4"),
        ('{"bus_bw": 1, "results": [{"size": 4, "redop": "none"}]}', "not an all-reduce"),
    ],
)
def test_what_is_no_nccl_all_reduce_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """The error names the file, the position and the reason."""
    with pytest.raises(FormatError, match=reason) as refusal:
        read_cost_log(_file(tmp_path, text))
    assert str(tmp_path / "log") in str(refusal.value)


@pytest.mark.parametrize("table", [NCCL_HEADER + NCCL_ROWS, OSU])
def test_a_table_far_down_a_log_is_found(tmp_path: Path, table: str) -> None:
    """Jobs of thousands of GPUs write their environment first: here 200 KB of it, with commas."""
    noise = "".join(f"srun: node{number:05d}: task launched, waiting\n" for number in range(5000))
    log = read_cost_log(_file(tmp_path, noise + table))
    assert log.samples == read_cost_log(_file(tmp_path, table)).samples


def test_osu_rows_are_read_from_a_schedulers_noise(tmp_path: Path) -> None:
    """The average is used; lines around the table are not."""
    log = read_cost_log(_file(tmp_path, OSU))
    assert dict(log.samples) == pytest.approx({4: 337.07e-6, 1048576: 3982.1e-6})
    assert log.workers is None


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("Avg Latency(us)        Validation", "{}              Pass"),
        ("Overall(us)       Compute(us)    Pure Comm.(us)        Overlap(%)", "96.00  5.00  {}  0.00"),
    ],
)
def test_other_columns_of_osu(tmp_path: Path, header: str, row: str) -> None:
    """Results that were checked; an all-reduce under compute, of which only communication counts."""
    rows = "".join(f"{size}  {row.format(f'{size / 4:.2f}')}\n" for size in (4, 4096))
    text = f"# OSU MPI Non-blocking Allreduce Latency Test v7.3\n# Size           {header}\n{rows}"
    assert dict(read_cost_log(_file(tmp_path, text)).samples) == pytest.approx({4: 1e-6, 4096: 1024e-6})


@pytest.mark.parametrize("cut", [2, 4, 9])
def test_a_last_row_of_osu_that_is_cut_off_is_left_out(tmp_path: Path, cut: int) -> None:
    """A file that ends within a number has a smaller one."""
    whole = "".join(OSU.splitlines(keepends=True)[1:5])
    assert len(read_cost_log(_file(tmp_path, whole.rstrip())).samples) == 2
    with pytest.warns(FormatWarning, match="line 4: the last row, of 1048576 bytes"):
        assert len(read_cost_log(_file(tmp_path, whole.rstrip()[:-cut])).samples) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (OSU.replace("Allreduce", "Alltoall"), "line 2: not an all-reduce test"),
        (OSU.replace("Avg Latency(us)  Min Latency(us)", "Bandwidth (MB/s)"), "line 3: no average latency"),
        (OSU.replace("3982.10 ", "1e999 "), "line 5: latency is '1e999'"),
        (OSU.replace("3982.10 ", "3,982.10 "), "line 5: no size and latency, with a decimal point"),
        (OSU.replace("3982.10 ", "nan "), "line 5: no size and latency"),
        ("# OSU MPI Allreduce Latency Test\n4 337\n", "no table"),
    ],
)
def test_what_is_no_osu_all_reduce_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    """Another collective, another quantity, a number that is none, a table that is missing."""
    with pytest.raises(FormatError, match=reason):
        read_cost_log(_file(tmp_path, text))


@pytest.mark.parametrize(
    "text",
    [
        "size_kib,time_ms,workers\n1,0.5,8\n1024,4,8\n",
        "bytes,note,us,workers\n1024,first,500,8\n1048576,second,4000,8\n",
        "1024,0.0005\n1048576,0.004\n",
        "size_kib;time_ms;note\n1;0.5;first, slow\n1024;4;\n",
        "1024\t0.0005\n1048576\t0.004\n",
        "  # exported, by, a, tool\nkib;ms\n1;0.5\n1024;4\n",
    ],
)
def test_csv_units_come_from_the_header(tmp_path: Path, text: str) -> None:
    """The same measurements in several notations."""
    log = read_cost_log(_file(tmp_path, text))
    assert dict(log.samples) == pytest.approx({1024: 5e-4, 1048576: 4e-3})
    assert log.workers == (8 if "workers" in text else None)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("bytes,watts\n1,2\n", "line 1: expected one column of times, named"),
        ("bytes,seconds,ms\n1,2,3\n", "line 1: expected one column of times, named"),
        ("bytes,seconds\n1,2\n3\n", "line 3: expected 2 cells, but the row has 1"),
        ("bytes,seconds\n1,nan\n", "line 2: seconds is 'nan'"),
        ("bytes,seconds\n1,0\n2,0\n", "every measured time is 0"),
        ("bytes,seconds\n", "no all-reduce measurements"),
        ("bytes,seconds,workers\n1,1,2\n1,1,4\n", r"several numbers of workers, \[2, 4\]"),
        ("bytes,seconds,nranks\n1,1,2\n1,1,4\n", r"several numbers of workers, \[2, 4\]"),
        ("bytes,seconds,workers\n1,1,0\n", "number of workers is 0"),
        ("bytes;us\n4;10\n1.048;400\n", "line 3: bytes is '1.048': expected a whole number"),
        ("hello world\n", "not a log of a known tool"),
    ],
)
def test_csv_faults_are_named(tmp_path: Path, text: str, reason: str) -> None:
    """Each fault with its line."""
    with pytest.raises(FormatError, match=reason):
        read_cost_log(_file(tmp_path, text))


@pytest.mark.parametrize("text", ["bytes\tseconds\n1\t2\n", NCCL_HEADER + NCCL_ROWS])
def test_a_text_in_utf_16_is_refused(tmp_path: Path, text: str) -> None:
    """As spreadsheets write "Unicode text", and PowerShell what it redirects."""
    (path := tmp_path / "times.txt").write_bytes(text.encode("utf-16"))
    with pytest.raises(FormatError, match="UTF-16: save it in UTF-8"):
        read_cost_log(path)


def test_a_table_may_have_columns_of_a_tool(tmp_path: Path) -> None:
    """A size and a time in the header make it a table, whatever else is there."""
    log = read_cost_log(_file(tmp_path, "size_bytes,time_us,algbw_GBs,busbw_GBs\n1048576,32.9,31.87,47.81\n"))
    assert dict(log.samples) == pytest.approx({1048576: 32.9e-6})


@pytest.mark.parametrize(
    "names",
    [
        ("all_reduce", "all_gather"),
        ("AllReduce", "ReduceScatter"),
        ("nccl:all_reduce", "nccl:_allgather_base"),
        ("all_reduce_perf", "alltoall_perf"),
        ("MPI_Iallreduce", "MPI_Reduce"),
    ],
)
@pytest.mark.parametrize("column", ["Collective", "test"])
def test_a_table_of_several_collectives_gives_its_all_reduces(
    tmp_path: Path, names: tuple[str, str], column: str
) -> None:
    """Whatever the column and they are called; without one it is refused."""
    rows = [
        f"{name},{size},{size // number // 1000}"
        for number, name in enumerate(names, 1)
        for size in (2**20, 2**24)
    ]
    text = "\n".join([f"{column},bytes,us", *rows])
    log = read_cost_log(_file(tmp_path, text))
    assert dict(log.samples) == pytest.approx({2**20: 1048e-6, 2**24: 16777e-6})
    with pytest.raises(FormatError, match=f"no all-reduces: {column.lower()} is {names[1]}"):
        read_cost_log(_file(tmp_path, "\n".join([f"{column},bytes,us", *rows[2:]])))


@pytest.mark.parametrize(
    ("content", "tool"),
    [
        (
            "Comm. Op            Message Size        Count               Total Latency(ms)   Avg Latency(ms)"
            "     tput_avg (Gbps)     busbw_avg (Gbps)\nall_reduce\n"
            "                    1.0 MB              40                  60.29               1.5            "
            "     5.5                 5.5\n",
            "DeepSpeed's summary of communication",
        ),
        (
            "---- Performance of all_reduce on 8 devices ---------------\n\n"
            "Size (Bytes)    Description    Duration    Throughput (Gbps)    BusBW (Gbps)\n"
            "1048576         1048576x1      120.11 us      69.8           122.2\n",
            "ds_bench, DeepSpeed's benchmark",
        ),
    ],
)
def test_a_tool_that_is_not_read_is_named_when_fitting(tmp_path: Path, content: str, tool: str) -> None:
    """As `pace headroom` names it, though DeepSpeed's busbw_avg begins like a column of nccl-tests."""
    with pytest.raises(FormatError, match=f"{tool}.*pace fit"):
        read_cost_log(_file(tmp_path, content))


def test_gzip_is_seen_through_whatever_the_name(tmp_path: Path) -> None:
    """A compressed log reads like the plain one; one that is cut off is refused."""
    packed = gzip.compress(OSU.encode() * 50)
    path = tmp_path / "log"
    path.write_bytes(packed)
    assert len(read_cost_log(path).samples) == 100
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(FormatError, match="gzip stream is damaged or cut off"):
        read_cost_log(path)


def test_logs_are_fitted_together(tmp_path: Path) -> None:
    """Samples of all logs, sorted; the line through points that lie on one is that line."""
    first = _file(tmp_path, "bytes,seconds,workers\n1000000,0.002,4\n2000000,0.003,4\n", "a")
    second = _file(tmp_path, "bytes,seconds\n4000000,0.005\n", "b")
    fitted = fit_cost([second, first])
    assert fitted.workers == 4
    assert [size for size, _ in fitted.allreduce.samples] == [1e6, 2e6, 4e6]
    assert fitted.affine.latency_s == pytest.approx(1e-3)
    assert fitted.affine.seconds_per_byte == pytest.approx(1e-9)
    assert fitted.affine_error == pytest.approx(0, abs=1e-9)
    assert float(fitted.allreduce.cost(4)(3_000_000)) == pytest.approx(0.004)


def test_the_error_of_one_line_is_reported(tmp_path: Path) -> None:
    """Three points off any line: the reported error is the largest relative distance."""
    fitted = fit_cost([_file(tmp_path, "1000,0.001\n2000,0.001\n4000,0.005\n")], workers=2)
    predicted = fitted.affine.cost(2)
    worst = max(abs(float(predicted(size)) / seconds - 1) for size, seconds in fitted.allreduce.samples)
    assert fitted.affine_error == pytest.approx(worst)
    assert worst > 0.1


def test_the_number_of_workers_must_be_known_and_one(tmp_path: Path) -> None:
    """Logs that do not say it need it; logs that disagree name themselves; the caller overrides."""
    silent = _file(tmp_path, "1000,0.001\n", "silent")
    two = _file(tmp_path, "bytes,seconds,workers\n1000,0.001,2\n", "two")
    four = _file(tmp_path, "bytes,seconds,workers\n1000,0.001,4\n", "four")
    with pytest.raises(InvalidOptions, match="give their number"):
        fit_cost([silent])
    with pytest.raises(InvalidOptions, match=r"two: 2.*four: 4"):
        fit_cost([two, four])
    assert fit_cost([two, four], workers=3).workers == 3


def test_an_unknown_format_is_refused_with_the_choices(tmp_path: Path) -> None:
    """The option's value is named."""
    with pytest.raises(InvalidOptions, match=r'"xml".*nccl-tests'):
        read_cost_log(_file(tmp_path, ""), "xml")


def test_a_rank_that_is_listed_otherwise_counts_and_a_missing_one_is_missed(tmp_path: Path) -> None:
    """Markdown and copies change the list of devices; there are no ranks 1 to 3 without a rank 0."""
    other = NCCL_HEADER.replace("#  Rank  0", "   Rank  0")
    assert read_cost_log(_file(tmp_path, other + NCCL_ROWS)).workers == 4
    for lost in (0, 1, 2):
        lines = [line for line in NCCL_HEADER.splitlines(keepends=True) if f"Rank  {lost}" not in line]
        with pytest.raises(FormatError, match=f"of rank 3 and not that of rank {lost}: restore that line"):
            read_cost_log(_file(tmp_path, "".join(lines) + NCCL_ROWS))


def test_a_rank_that_no_job_has_is_refused_at_once(tmp_path: Path) -> None:
    """Counting up to it would take all memory."""
    other = NCCL_HEADER.replace("Rank  3", "Rank  99999999999")
    with pytest.raises(FormatError, match="of rank 99999999999 and not that of rank 3"):
        read_cost_log(_file(tmp_path, other + NCCL_ROWS))


def test_ranks_that_measure_in_groups_count_as_one_group(tmp_path: Path) -> None:
    """NCCL_TESTS_SPLIT runs an all-reduce in each group at once; times are those of one."""
    split = NCCL_HEADER.replace("Rank  1 Group  0", "Rank  1 Group  1").replace(
        "Rank  3 Group  0", "Rank  3 Group  1"
    )
    rows = NCCL_ROWS.replace("16.77", "11.18").replace("17.10", "11.40")
    assert read_cost_log(_file(tmp_path, split + rows)).workers == 2


@pytest.mark.parametrize(("each", "workers"), [({}, 4), ({"ngpus": 2}, 8), ({"nthreads": 2, "ngpus": 4}, 32)])
def test_json_lists_one_device_of_each_process(tmp_path: Path, each: dict[str, int], workers: int) -> None:
    """Of the others it tells how many there are, with MPI and without."""
    devices = [{"rank": 2 * process, "group": 0} for process in range(4)]
    result = {"size": 1024, "redop": "sum", "in_place": {"time": 27.5, "alg_bw": 0.04, "bus_bw": 0.06}}
    document = {"bus_bw": 0, "config": {"devices": devices, **each}, "results": [result]}
    assert read_cost_log(_file(tmp_path, json.dumps(document))).workers == workers


def test_bandwidths_of_no_all_reduce_are_refused(tmp_path: Path) -> None:
    """Of sends and receives, whose tables look alike, or of more ranks than the lines that were kept."""
    for rows in (NCCL_ROWS.replace("16.77", "11.18").replace("17.10", "11.40"), NCCL_ROWS):
        fewer = "\n".join(line for line in NCCL_HEADER.splitlines() if "Rank  3" not in line) + "\n"
        header = fewer if rows == NCCL_ROWS else NCCL_HEADER
        with pytest.raises(FormatError, match=r"busbw of .* is not of an all-reduce among [34] ranks"):
            read_cost_log(_file(tmp_path, header + rows))
    result = {"size": 1048576, "redop": "sum", "in_place": {"time": 93.8, "alg_bw": 11.18, "bus_bw": 11.18}}
    document = {"config": {"devices": [{"rank": 0}], "ngpus": 8}, "results": [result]}
    with pytest.raises(FormatError, match="of an all-reduce among 8 ranks"):
        read_cost_log(_file(tmp_path, json.dumps(document)))


def test_a_row_without_a_reduction_is_refused(tmp_path: Path) -> None:
    """An all-to-all, as `-J` is refused."""
    with pytest.raises(FormatError, match="line 11: no reduction"):
        read_cost_log(_file(tmp_path, NCCL_HEADER + NCCL_ROWS.replace(" sum ", " none ")))


@pytest.mark.parametrize("moment", ["  2025-08-21 10:11:12", ""])
def test_times_of_day_and_of_single_iterations_are_left_out(tmp_path: Path, moment: str) -> None:
    """The options -S and -I of newer versions add columns."""
    per_iteration = "  26.10  29.90  29.90  4.20"
    header = NCCL_HEADER.replace("#wrong\n", "#wrong" + ("  timestamp" if moment else "") + "\n")
    rows = NCCL_ROWS.replace("0\n", "0" + moment + "\n").replace("N/A\n", "N/A" + moment + "\n")
    if not moment:
        header = header.replace("#wrong", "#wrong  i_min  i_max  i_p99  i_cv%")
        rows = rows.replace("  0  ", f"  0{per_iteration}  ").replace("0\n", f"0{per_iteration}\n")
        rows = rows.replace("N/A\n", f"N/A{per_iteration}\n")
    samples = read_cost_log(_file(tmp_path, header + rows)).samples
    assert dict(samples) == pytest.approx({1024: 27.5e-6, 1048576: 120e-6})


def test_runs_of_different_numbers_of_ranks_in_one_file_are_refused(tmp_path: Path) -> None:
    """Two logs written one behind the other; two of as many ranks are one measurement."""
    path = tmp_path / "log.txt"
    fewer = "\n".join(line for line in NCCL_HEADER.splitlines() if "Rank  3" not in line) + "\n"
    path.write_text(NCCL_HEADER + NCCL_ROWS + fewer + NCCL_ROWS)
    with pytest.raises(FormatError, match="runs of 4 and 3 ranks: split it"):
        read_cost_log(path)
    path.write_text(2 * (NCCL_HEADER + NCCL_ROWS))
    assert read_cost_log(path).workers == 4
