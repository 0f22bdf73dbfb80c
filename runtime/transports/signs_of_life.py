"""What ranks' signs of life say, in words: which ranks are lost, have left, or hold up the others.

A sign of life is a rank's progress, with ``beat`` (how many signs it has written), ``left`` (whether it has
left the training), and maybe ``reason`` (why) and ``done`` (whether it ended without ``close()``).
"""

from collections.abc import Sequence
from typing import Any

# The most ranks that a message names.
_MOST_NAMED = 5

Signs = Sequence[dict[str, Any]]
"""The last sign of life of every rank, in rank order."""


def names_in_job(ranks: Sequence[int]) -> list[str]:
    """Return what to call ranks, given the number of each in the whole job."""
    return [
        f"rank {rank}" if rank == number else f"rank {rank} (rank {number} of the whole job)"
        for rank, number in enumerate(ranks)
    ]


def lost(before: Signs, after: Signs, names: Sequence[str], own: int) -> str:
    """Return which ranks have left, or have written no sign of life between two looks; "" for none."""
    told = left(after, names, own)
    for rank, (early, late) in enumerate(zip(before, after, strict=True)):
        if late.get("left"):
            continue
        if late["beat"] == 0:
            told[rank] = f"{names[rank]} has not wrapped its optimizer: make the same call on every rank"
        elif early["beat"] == late["beat"] and rank != own:
            told[rank] = f"{names[rank]} gives no sign of life"
    return ", ".join(told[rank] for rank in sorted(told))


def no_store(keeper: str) -> str:
    """Return that the rank with the store is gone, which may follow from another rank's end."""
    return (
        f"{keeper} is gone: the store that it keeps does not answer; if its own error names another rank, "
        "that rank ended first"
    )


def absent(signs: Signs, names: Sequence[str]) -> str:
    """Return which ranks have written no sign of life yet, and what to do; "" for none."""
    away = [name for name, each in zip(names, signs, strict=True) if not each["beat"]]
    if not away:
        return ""
    shown = f"{', '.join(away[:_MOST_NAMED])}{', ...' if len(away) > _MOST_NAMED else ''}"
    have = "has not wrapped its optimizer" if len(away) == 1 else "have not wrapped their optimizers"
    return f"{shown} {have}: make the same call on every rank, and see whether all of them still run"


def left(signs: Signs, names: Sequence[str], own: int) -> dict[int, str]:
    """Return which ranks have left, without those that left because of this failure."""
    return {
        rank: f"{names[rank]} has left the training{_when(each)}"
        for rank, each in enumerate(signs)
        if each.get("left") and not each.get("failed") and rank != own
    }


def unsent(signs: Signs, names: Sequence[str]) -> str:
    """Return which ranks have not sent which groups, or are steps behind; "" for none."""
    newest = max(each.get("round", 0) for each in signs)
    begun = any(each.get("open") for each in signs if each.get("round", 0) == newest)
    told = []
    for name, each in zip(names, signs, strict=True):
        steps, is_open = each.get("round", 0), each.get("open", True)
        if each.get("missing"):
            told.append(
                f"{name} has not sent groups {', '.join(map(str, each['missing']))} of its step {steps + 1}"
            )
        elif not is_open and (steps < newest or begun):
            told.append(f"{name} has not begun step {steps + 1}")
        elif steps < newest and begun:
            told.append(f"{name} has not ended step {steps + 1}")
    return "; ".join(told)


def _when(sign: dict[str, Any]) -> str:
    """Return why a rank left, or after which step it ended as it should, and what to do."""
    if "reason" in sign:
        return f" ({sign['reason']})"
    if "round" not in sign:
        return ""
    when = f"after its step {sign['round']}" if sign["round"] else "before its first step"
    saves = ", and call close() on every rank if one saves the optimizer later" if sign.get("done") else ""
    return f" {when}: let every rank take the same number of steps{saves}"
