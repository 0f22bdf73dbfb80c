"""The answer of ``pace headroom`` as one HTML page that needs nothing else, and as lines of text."""

from collections.abc import Iterator
from html import escape

from pace.whatif.headroom import Headroom, Reachable

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:52rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .8rem;text-align:right}"
    "td:first-child,th:first-child{text-align:left}.bar{background:#4a7db5;height:.9rem}"
)
_ROWS = (
    ("DDP as it comes", "ddp_s"),
    ("DDP with the best caps", "ddp_best_caps_s"),
    ("PACE", "pace_s"),
    ("PACE, sharded", "sharded_s"),
    ("no schedule is faster", "bound_s"),
)


def table_rows(made: Headroom) -> list[tuple[str, ...]]:
    """Return a heading and a row for each way to train, in milliseconds; a column more under clipping."""
    columns: list[tuple[str, Reachable]] = [("ms", made.plain)]
    if made.clipped is not None:
        columns.append(("ms, clipped by the global norm", made.clipped))
    rows = [("iteration", *(name for name, _ in columns))]
    rows += [
        (label, *(_milliseconds(getattr(reachable, field)) for _, reachable in columns))
        for label, field in _ROWS
    ]
    return rows


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def time_rows(made: Headroom) -> list[tuple[str, float | None]]:
    """Return what the iteration's time goes to, in seconds; None where nothing tells."""
    time = made.time
    return [
        ("compute", time.compute_s),
        ("exposed communication", time.exposed_communication_s),
        ("waiting for the host", time.host_wait_s),
        ("other collectives", time.other_communication_s),
        ("late ranks", time.late_ranks_s),
    ]


def text_lines(made: Headroom) -> Iterator[str]:
    """Yield the answer for a terminal."""
    yield f"{made.profile}: {made.workers} workers"
    if made.recorded_s is not None:
        yield f"recorded step            {made.recorded_s * 1e3:10.3f} ms"
    rows = table_rows(made)
    for label, *cells in rows:
        yield f"{label:24}" + "".join(
            f" {cell:>{max(len(rows[0][at + 1]), 10)}}" for at, cell in enumerate(cells)
        )
    if made.plain.bucket_cap_mb_list:
        yield f"bucket_cap_mb_list={[round(cap, 6) for cap in made.plain.bucket_cap_mb_list]}"
    for label, seconds in time_rows(made):
        known = "not known from this profile" if seconds is None else f"{seconds * 1e3:.3f} ms"
        yield f"  {label:24} {known}"
    yield from made.advice


def headroom_page(made: Headroom) -> str:
    """Return the page."""
    heading, *rows = table_rows(made)
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        f"<title>Headroom of {escape(made.profile)}</title><style>{_STYLE}</style>",
        f"<h1>Headroom of {escape(made.profile)}</h1><p>{made.workers} workers",
        "" if made.recorded_s is None else f", a recorded step of {made.recorded_s * 1e3:.2f} ms",
        "</p><table><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in heading) + "</tr>",
        *("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows),
        "</table><h2>Where the time goes</h2><table>",
    ]
    longest = max((seconds or 0.0 for _, seconds in time_rows(made)), default=0.0) or 1.0
    for label, seconds in time_rows(made):
        shown = "not known" if seconds is None else f"{seconds * 1e3:.2f} ms"
        width = 20 * (seconds or 0.0) / longest
        parts.append(
            f"<tr><td>{label}</td><td>{shown}</td>"
            f'<td><div class="bar" style="width:{width:.2f}rem"></div></td></tr>'
        )
    parts.append("</table><h2>What to do</h2><ul>")
    parts += [f"<li>{escape(line)}</li>" for line in made.advice]
    parts.append("</ul>")
    if made.plain.bucket_cap_mb_list:
        caps = [round(cap, 6) for cap in made.plain.bucket_cap_mb_list]
        parts.append(f"<pre>bucket_cap_mb_list={caps}</pre>")
    if made.warnings:
        parts.append(
            "<h2>Warnings</h2><ul>" + "".join(f"<li>{escape(line)}</li>" for line in made.warnings) + "</ul>"
        )
    return "".join(parts) + "</html>\n"
