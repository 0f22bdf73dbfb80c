"""The answer of ``pace check-order`` as one HTML page that needs nothing else: a lane for each rank."""

from html import escape

from pace.counted import counted
from pace.documents.order.order_report import CircleWait, OrderFinding, OrderReport
from pace.order.findings import model_line

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70rem;margin:2rem auto;padding:0 1rem}"
    ".answer{font-size:1.1rem;font-weight:600}svg{max-width:100%;height:auto}pre{white-space:pre-wrap}"
    ".lane{stroke:#bbb}.wait{fill:#e0a458}.arrow{stroke:#b03030;stroke-width:2;fill:none}.head{fill:#b03030}"
)
_WIDTH, _LEFT, _ROW, _BOX = 900, 90, 56, 26
_LETTERS = 85  # as many as fit into a box


def order_page(report: OrderReport) -> str:
    """Return the page."""
    verdict = "cannot hang" if report.cannot_hang else "can hang"
    size = f"{counted(report.num_ranks, 'rank')}, {counted(report.num_operations, 'operation')}"
    name = escape(report.name)
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>{name} {verdict}</title><style>{_STYLE}</style>",
        f'<h1>Order of collectives</h1><p class="answer">{name} {verdict}: {size}.</p>',
    ]
    for finding in report.findings:
        parts.append(f"<h2>{escape(finding.title)}</h2>{_drawn(finding)}")
        parts.append(f"<pre>{escape(chr(10).join(finding.lines))}</pre>")
    items = "".join(f"<li>{escape(line)}</li>" for line in report.outside)
    parts.append(f"<h2>What was checked</h2><p>{escape(model_line(report))}</p><ul>{items}</ul></html>\n")
    return "".join(parts)


def _drawn(finding: OrderFinding) -> str:
    """Return a circle as SVG: a lane for each rank, and an arrow to the rank that it waits for."""
    waits = finding.waits
    if not waits:
        return ""
    height = _ROW * len(waits)
    right = _WIDTH - 50
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img" '
        f'aria-label="{escape(finding.title)}">',
        '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto"><path class="head" d="M0 0L8 4L0 8z"/></marker></defs>',
    ]
    parts += [_lane(wait, place, right) for place, wait in enumerate(waits)]
    middle = _LEFT + 40
    for place in range(len(waits) - 1):
        top, bottom = _y(place) + _BOX / 2, _y(place + 1) - _BOX / 2
        parts.append(f'<path class="arrow" marker-end="url(#head)" d="M{middle} {top}V{bottom}"/>')
    last, out = _y(len(waits) - 1), right + 30
    parts.append(
        f'<path class="arrow" marker-end="url(#head)" d="M{right} {last}H{out}V{_y(0)}H{right + 1}"/></svg>'
    )
    return "".join(parts)


def _lane(wait: CircleWait, place: int, right: int) -> str:
    y = _y(place)
    operation = wait.operation if len(wait.operation) <= _LETTERS else f"{wait.operation[:_LETTERS]}..."
    told = f"rank {wait.rank} waits in {wait.operation} for rank {wait.waits_for}"
    return (
        f'<text x="0" y="{y + 5}">rank {wait.rank}</text>'
        f'<line class="lane" x1="{_LEFT - 10}" y1="{y}" x2="{right}" y2="{y}"/>'
        f'<g><title>{escape(told)}</title><rect class="wait" x="{_LEFT}" y="{y - _BOX / 2}" '
        f'width="{right - _LEFT}" height="{_BOX}" rx="4"/>'
        f'<text x="{_LEFT + 60}" y="{y + 5}" font-size="13">{escape(operation)}</text></g>'
    )


def _y(place: int) -> float:
    return _ROW * (place + 0.5)
