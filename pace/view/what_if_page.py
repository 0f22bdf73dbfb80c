"""One self-contained HTML page: charts, best policies, targets, the table, and what was assumed."""

import base64
from html import escape

from pace.counted import counted
from pace.version import __version__
from pace.view.what_if_charts import LABELS, as_svg, charts
from pace.whatif.results import Cell, WhatIf
from pace.whatif.scenario import ASSUMPTIONS

MOST_FIGURES = 12
MOST_ROWS = 2000

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #1b1f24 }
body { margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
figure { margin: 1rem 0; overflow-x: auto } svg { max-width: 100%; height: auto }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums }
th, td { padding: .2rem .7rem; text-align: right; border-bottom: 1px solid #e4e7eb; white-space: nowrap }
th { position: sticky; top: 0; background: #fff; text-align: right } td.best { font-weight: 600 }
.scroll { overflow: auto; max-height: 32rem } .note { color: #57606a }
"""


def to_html(result: WhatIf) -> str:
    """Return the page; it loads nothing from anywhere. Needs matplotlib (``pace-scheduler[plot]``)."""
    profile = result.profile
    size_mb = sum(gradient.size_bytes for gradient in profile.gradients) / 1e6
    link = f'<a download="what-if.csv" href="data:text/csv;base64,{_encoded(result.to_csv())}">CSV</a>'
    parts = [
        f"<h1>What if: {escape(profile.name)}</h1>",
        f"<p>{counted(len(profile.gradients), 'gradient')}, {size_mb:.1f} MB, "
        f"{counted(profile.workers, 'worker')} as profiled; "
        f"{len(result.cells):,} cells; speed-ups are over {result.grid.baseline_policy}. {link}</p>",
        "<h2>Best policy</h2>",
        _best(result),
    ]
    if result.answers:
        parts += ["<h2>Bandwidth for a target</h2>", _targets(result)]
    parts.append("<h2>Charts</h2>")
    drawn = list(zip(range(MOST_FIGURES + 1), charts(result), strict=False))
    parts += [
        f"<figure><figcaption>{escape(title)}</figcaption>{as_svg(figure)}</figure>"
        for _, (title, figure) in drawn[:MOST_FIGURES]
    ]
    if len(drawn) > MOST_FIGURES:
        parts.append('<p class="note">Further combinations are in the CSV only.</p>')
    parts += ["<h2>All cells</h2>", _cells(result), "<h2>What was assumed</h2>"]
    parts.append("<ul>" + "".join(f"<li>{escape(line)}</li>" for line in ASSUMPTIONS) + "</ul>")
    parts.append(f'<p class="note">pace {__version__}, profile {profile.sha256}</p>')
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>What if: {escape(profile.name)}</title><style>{STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _place(cell: Cell, axes: tuple[str, ...]) -> list[str]:
    values = (getattr(cell, axis) for axis in axes)
    return [f"{value:g}" if isinstance(value, float) else str(value) for value in values]


def html_table(heading: list[str], rows: list[list[str]]) -> str:
    """Return a table of plain text that scrolls where it is large."""
    head = "".join(f"<th>{escape(name)}</th>" for name in heading)
    body = "".join("<tr>" + "".join(f"<td>{escape(v)}</td>" for v in row) + "</tr>" for row in rows)
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _best(result: WhatIf) -> str:
    axes = result.grid.varied()
    rows = []
    for cells in result.points():
        fastest = min(cells, key=lambda cell: cell.iteration_s)
        rows.append(
            [
                *_place(fastest, axes),
                fastest.policy,
                f"{fastest.iteration_s * 1e3:.2f}",
                f"{(fastest.speedup - 1) * 100:+z.1f} %",
                f"{fastest.scaling_efficiency * 100:.1f} %",
            ]
        )
    names = [LABELS[axis] for axis in axes]
    gain = f"over {result.grid.baseline_policy}"
    table = html_table([*names, "fastest", "iteration ms", gain, "scaling efficiency"], rows[:MOST_ROWS])
    return table + _rest(len(rows))


def _targets(result: WhatIf) -> str:
    axes = tuple(axis for axis in result.grid.varied() if axis != "bandwidth_gbps")
    rows = []
    for answer in result.answers:
        values = (getattr(answer, axis) for axis in axes)
        shown = [f"{value:g}" if isinstance(value, float) else str(value) for value in values]
        gbps = "never" if answer.bandwidth_gbps is None else f"{answer.bandwidth_gbps:.3g}"
        rows.append([*shown, answer.policy, f"{answer.target_efficiency * 100:g} %", gbps])
    return html_table([*(LABELS[axis] for axis in axes), "policy", "efficiency", "Gbit/s"], rows)


def _cells(result: WhatIf) -> str:
    axes = result.grid.varied()
    rows = [
        [
            *_place(cell, axes),
            cell.policy,
            f"{cell.iteration_s * 1e3:.3f}",
            f"{cell.throughput:.5g}",
            f"{cell.scaling_efficiency * 100:.1f} %",
            f"{cell.speedup:.3f}",
            "" if cell.gain_per_gbps is None else f"{cell.gain_per_gbps * 100:+z.2f} %",
        ]
        for cell in result.cells[:MOST_ROWS]
    ]
    heading = [
        "policy",
        "iteration ms",
        f"{result.unit}/s",
        "scaling efficiency",
        "speed-up",
        "gain per Gbit/s more",
    ]
    return html_table([*(LABELS[axis] for axis in axes), *heading], rows) + _rest(len(result.cells))


def _rest(count: int) -> str:
    return f'<p class="note">{count - MOST_ROWS:,} more are in the CSV.</p>' if count > MOST_ROWS else ""
