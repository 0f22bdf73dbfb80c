"""A transfer plan as a Chrome trace: one row or more for each link in use, and one for the commits."""

from typing import Any

from pace.fabric.documents.transfer_plan import Transfer, TransferPlan
from pace.view.chrome_trace import ChromeTrace

# A commit takes no time; what is shown has to be seen.
_COMMIT_SHOWN_S = 1e-3


def transfer_trace(plan: TransferPlan) -> dict[str, Any]:
    """Return the planned transfers and commits as a Chrome trace document (JSON-ready).

    Transfers that share a link are shown in rows of their own, because slices of a row must not overlap.
    """
    trace = ChromeTrace("transfer plan")
    row = 0
    for link, transfers in sorted(_by_link(plan).items()):
        for number, lane in enumerate(_lanes(transfers)):
            trace.add_row(row, link if number == 0 else f"{link} ({number + 1})")
            for transfer in lane:
                about = {"updates": list(transfer.updates), "bytes": transfer.size_bytes}
                label = " + ".join(transfer.updates)
                trace.add_slice(row, label, transfer.start_s, transfer.end_s, about)
            row += 1
    trace.add_row(row, "commits")
    for commit in plan.commits:
        label = f"version {commit.version}"
        about = {"updates": list(commit.updates)}
        trace.add_slice(row, label, commit.at_s, commit.at_s + _COMMIT_SHOWN_S, about)
    return trace.document()


def _by_link(plan: TransferPlan) -> dict[str, list[Transfer]]:
    links: dict[str, list[Transfer]] = {}
    for transfer in plan.transfers:
        links.setdefault(f"{transfer.source} up", []).append(transfer)
        links.setdefault(f"{transfer.target} down", []).append(transfer)
    return links


def _lanes(transfers: list[Transfer]) -> list[list[Transfer]]:
    lanes: list[list[Transfer]] = []
    for transfer in sorted(transfers, key=lambda t: (t.start_s, t.id)):
        free = next((lane for lane in lanes if lane[-1].end_s <= transfer.start_s), None)
        if free is None:
            lanes.append([transfer])
        else:
            free.append(transfer)
    return lanes
