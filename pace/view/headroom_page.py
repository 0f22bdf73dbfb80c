"""The answer of ``pace headroom`` as one HTML page that needs nothing else, and as lines of text."""

from collections.abc import Iterator
from html import escape

from pace.counted import counted
from pace.whatif.headroom import LEAST_GAIN, Headroom, Reachable

CAPS_TORCH = "2.13"
_STYLE = (
    ":root{color-scheme:light dark}"
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "overflow-wrap:anywhere}h1{font-size:1.5rem}h2{font-size:1.15rem}h3{font-size:1rem;margin-bottom:.3rem}"
    "table{border-collapse:collapse;overflow-wrap:normal}td,th{padding:.2rem .8rem;text-align:right}"
    "tr+tr{border-top:1px solid color-mix(in srgb,currentColor 15%,transparent)}"
    "td:first-child,th:first-child{text-align:left;padding-left:0}.scroll{overflow-x:auto}"
    ".times{width:100%}.times td:nth-child(2){white-space:nowrap}.times td:last-child{width:45%}"
    ".bar{background:#4a7db5;height:.9rem}.job{font-size:1.1rem;font-weight:600}"
    ".warnings{border-left:.3rem solid #c98a00;padding-left:1rem}"
    ".swatch{display:inline-block;width:.8rem;height:.8rem;margin:0 .4rem 0 1rem}"
    ".swatch:first-child{margin-left:0}"
    "svg{display:block;width:100%;min-width:36rem;height:auto}"
    "pre{white-space:pre-wrap;padding:.7rem 1rem;"
    "background:color-mix(in srgb,currentColor 8%,transparent)}"
)
_ROWS = (
    ("DDP as it comes", "ddp_s"),
    ("DDP with the best caps", "ddp_best_caps_s"),
    ("PACE", "pace_s"),
    ("PACE, sharded", "sharded_s"),
    ("no schedule is faster", "bound_s"),
)
_DEFAULT_CAPS = "DDP as it comes has a first bucket of 1 MiB and then buckets of 25 MiB."


def table_rows(made: Headroom) -> list[tuple[str, ...]]:
    """Return a heading and a row for each way to train: milliseconds and the gain; more under clipping."""
    columns: list[tuple[str, Reachable]] = [("ms", made.plain)]
    if made.clipped is not None:
        columns.append(("ms, clipped by the global norm", made.clipped))
    rows = [("iteration", *(cell for name, _ in columns for cell in (name, "gain")))]
    if made.recorded is not None:
        empty = ("-", "") * (len(columns) - 1)
        rows.append(("recorded step", _milliseconds(made.recorded.recorded_s), "", *empty))
        replayed = f"error {made.recorded.error:+z.1%}"
        rows.append(("its replay", _milliseconds(made.recorded.replayed_s), replayed, *empty))
    for label, field in _ROWS:
        if getattr(made.plain, field) is None and field.startswith("ddp"):
            continue
        cells = [cell for _, reachable in columns for cell in _cells(made, getattr(reachable, field))]
        rows.append((label, *cells))
    return rows


def _cells(made: Headroom, seconds: float | None) -> tuple[str, str]:
    gain = made.gain(seconds)
    return _milliseconds(seconds), "-" if gain is None else f"{gain:z.1%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.3f}"


def gain_lines(made: Headroom) -> list[str]:
    """Return what gains are compared with, and what a dash in their column means."""
    lines = [f"Gains are compared with {made.compared_with}."]
    shown = [(row, name) for row in (made.plain, made.clipped) if row is not None for name in row.gains]
    if any(row.gains[name] is None and getattr(row, name) is not None for row, name in shown):
        lines.append(f"A dash: not certain, because the replay is {abs(made.replay_error):.1%} off.")
    if made.plain.ddp_s is not None:
        lines.append(_DEFAULT_CAPS)
    return lines


def time_rows(made: Headroom) -> list[tuple[str, float | None, str]]:
    """Return what the iteration's time goes to, in seconds, and a note; None where nothing tells."""
    time = made.time
    mean_s = time.mean_late_ranks_s
    late = "" if mean_s is None else f"for the slowest rank; {mean_s * 1e3:,.3f} ms on average over ranks"
    return [
        ("compute", time.compute_s, ""),
        ("exposed communication", time.exposed_communication_s, ""),
        ("waiting for late ranks", time.late_ranks_s, late),
        ("waiting for the host", time.host_wait_s, ""),
        ("other collectives", time.other_communication_s, ""),
    ]


def caps_lines(made: Headroom) -> list[str]:
    """Return the call with the best caps, to be pasted, and what it needs; nothing without such caps."""
    caps = [round(cap, 6) for cap in made.plain.bucket_cap_mb_list]
    if not caps or (made.gain(made.plain.ddp_best_caps_s) or 0.0) <= LEAST_GAIN:
        return []
    return [
        f"# torch {CAPS_TORCH} takes this list; a torch without it takes one number, bucket_cap_mb",
        f"model = DistributedDataParallel(model, bucket_cap_mb_list={caps})",
    ]


def text_lines(made: Headroom) -> Iterator[str]:
    """Yield the answer for a terminal."""
    yield made.job
    yield f"{made.profile}: {counted(made.workers, 'worker')}"
    for warning in made.warnings:
        yield f"warning: {warning}"
    rows = table_rows(made)
    for label, *cells in rows:
        widths = [max(len(heading), 10) for heading in rows[0][1:]]
        shown = [f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
        yield f"{label:24} {' '.join(shown)}".rstrip()
    yield from gain_lines(made)
    for label, seconds, note in time_rows(made):
        known = "not known" if seconds is None else f"{seconds * 1e3:.3f} ms"
        yield f"  {label:24} {known} {note or ('from this profile' if seconds is None else '')}".rstrip()
    yield from made.advice
    yield from caps_lines(made)


def headroom_page(made: Headroom, timelines: str = "") -> str:
    """Return the page.

    Parameters
    ----------
    timelines
        HTML of the recorded and the planned step (``pace.view.step_timelines``), if there are any.
    """
    heading, *rows = table_rows(made)
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>Headroom of {escape(made.profile)}</title><style>{_STYLE}</style>",
        f'<h1>Headroom of {escape(made.profile)}</h1><p class="job">{escape(made.job)}</p>',
        f"<p>{counted(made.workers, 'worker')}</p>",
    ]
    if made.warnings:
        items = "".join(f"<li>{escape(line)}</li>" for line in made.warnings)
        parts.append(f'<div class="warnings"><h2>Warnings</h2><ul>{items}</ul></div>')
    parts.append("<h2>What to do</h2><ul>")
    parts += [f"<li>{escape(line)}</li>" for line in made.advice]
    parts.append("</ul>")
    caps = caps_lines(made)
    if caps:
        parts.append(f"<pre>{escape(chr(10).join(caps))}</pre>")
    parts.append('<div class="scroll" role="region" tabindex="0" aria-label="Iterations"><table><tr>')
    parts.append("".join(f"<th>{escape(cell)}</th>" for cell in heading) + "</tr>")
    parts += ["<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows]
    parts.append("</table></div>")
    parts.append(f"<p>{escape(' '.join(gain_lines(made)))}</p>")
    parts.append(timelines)
    parts.append('<h2>Where the time goes</h2><table class="times">')
    longest = max((seconds or 0.0 for _, seconds, _ in time_rows(made)), default=0.0) or 1.0
    for label, seconds, note in time_rows(made):
        shown = "not known" if seconds is None else f"{seconds * 1e3:.3f} ms"
        shown += f"<br><small>{note}</small>" if note else ""
        width = 100 * (seconds or 0.0) / longest
        parts.append(
            f"<tr><td>{label}</td><td>{shown}</td>"
            f'<td><div class="bar" style="width:{width:.1f}%"></div></td></tr>'
        )
    return "".join(parts) + "</table></html>\n"
