"""A transfer plan laid out in time: each link in use has a row or more, and the commits have one."""

from pace.view.window import Cargo, Window, WindowTransfer
from pace_fabric.documents.transfer_plan import TransferPlan

# A commit takes no time; what is shown has to be seen.
_COMMIT_SHOWN_S = 1e-3


def lay_out_plan(plan: TransferPlan) -> Window:
    """Lay out the planned transfers and commits."""
    transfers = plan.transfers
    used = sorted({f"{each.source} up" for each in transfers} | {f"{each.target} down" for each in transfers})
    links = {name: number for number, name in enumerate([*used, "commits"])}
    cargo = [
        Cargo(name=" + ".join(each.updates), gradients=each.updates, size_bytes=each.size_bytes)
        for each in transfers
    ]
    on_links = [
        WindowTransfer(
            link=links[link],
            cargo=number,
            size_bytes=each.size_bytes,
            start_s=each.start_s,
            end_s=each.end_s,
        )
        for number, each in enumerate(transfers)
        for link in (f"{each.source} up", f"{each.target} down")
    ]
    for commit in plan.commits:
        shown_s = commit.at_s + _COMMIT_SHOWN_S
        on_links.append(
            WindowTransfer(
                link=links["commits"], cargo=len(cargo), size_bytes=0, start_s=commit.at_s, end_s=shown_s
            )
        )
        cargo.append(Cargo(name=f"version {commit.version}", gradients=commit.updates, size_bytes=0))
    return Window(
        name="transfer plan",
        iteration_s=max((each.end_s for each in on_links), default=0.0),
        barrier=False,
        links=tuple(links),
        cargo=tuple(cargo),
        transfers=tuple(on_links),
    )
