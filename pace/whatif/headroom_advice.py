"""What to do next about a job's headroom: the most useful sentence first, and no gain that is not certain."""

from dataclasses import replace

from pace.formats.import_report import DOUBTFUL
from pace.whatif.headroom import LEAST_GAIN, Headroom

Sentence = tuple[float, str]


def advice_for(made: Headroom, kind: str) -> Headroom:
    """Return the answer with its advice, for a job of a kind that ``pace.formats.kineto_kind`` names."""
    if made.baseline_s <= 0:
        return replace(made, advice=("Nothing takes time here.",))
    sentences = [*_sending(made, kind), *_clipping(made), *_rest(made)]
    if not any(gain > 0 for gain, _ in sentences):
        sentences.append((0.0, _nothing_to_gain(made)))
    warnings = made.warnings
    withheld = _withheld(made)
    if withheld is not None:
        warnings = (withheld, *warnings)
    ordered = sorted(sentences, key=lambda sentence: -sentence[0])
    return replace(made, warnings=warnings, advice=tuple(text for _, text in ordered))


def _withheld(made: Headroom) -> str | None:
    """Return the warning about gains that are smaller than the replay's error."""
    if not made.is_withheld:
        return None
    return (
        f"percentages are withheld: the replay differs from the recorded step by {made.replay_error:+z.1%}, "
        f"and the best plan differs from {made.compared_with} by {made.promised:.1%} only. Record more steps "
        "on idle machines."
    )


def _less(made: Headroom, gain: float) -> str:
    return f"{gain:.1%} less than " + ("DDP as it comes" if made.recorded is None else "the recorded step")


def _sending(made: Headroom, kind: str) -> list[Sentence]:
    found: list[Sentence] = []
    serial = kind == "all-reduces after the backward pass"
    caps, pace = made.gain(made.plain.ddp_best_caps_s), made.gain(made.plain.pace_s)
    default = made.gain(made.plain.ddp_s)
    if serial and default is not None and default > LEAST_GAIN:
        text = (
            "The all-reduces run one after another when the backward pass is over. Wrap the model in "
            f"DistributedDataParallel, which sends during the backward pass: {_less(made, default)}."
        )
        found.append((1 + default, text))  # before all else
    elif caps is not None and caps > LEAST_GAIN and made.plain.bucket_cap_mb_list:
        text = f"Pass bucket_cap_mb_list to DistributedDataParallel: {_less(made, caps)}."
        found.append((caps, text))
    elif caps is not None and caps > LEAST_GAIN:
        text = f"Leave bucket_cap_mb at its default in DistributedDataParallel: {_less(made, caps)}."
        found.append((caps, text))
    best_caps_s = made.plain.ddp_best_caps_s
    if (
        pace is not None
        and pace > LEAST_GAIN
        and (best_caps_s is None or made.plain.pace_s < 0.99 * best_caps_s)
    ):
        text = f"Wrap the optimizer with PACE: {_less(made, pace)}."
        remaining = None if made.clipped is None else made.gain(made.clipped.pace_s)
        if remaining is not None:
            text += f" With clipping by the global norm, {max(remaining, 0.0):.1%} less."
        found.append((pace, text))
    return found


def _clipping(made: Headroom) -> list[Sentence]:
    if made.clipped is None or made.clipped.sharded_s is None:
        return []
    gain = made.gain(made.clipped.sharded_s)
    others = min(made.clipped.pace_s, made.clipped.ddp_best_caps_s or made.clipped.pace_s)
    if gain is None or gain <= LEAST_GAIN or made.clipped.sharded_s >= 0.99 * others:
        return []
    text = f"With clipping, reduce-scatter, norm and gathers of shards would take {_less(made, gain)}."
    return [(gain, text)]


def _rest(made: Headroom) -> list[Sentence]:
    now, time = made.baseline_s, made.time
    found: list[Sentence] = []
    host = (time.host_wait_s or 0.0) / now
    if host > 0.1:
        text = (
            f"The device waits for its host during {host:.0%} of the step: CUDA graphs, torch.compile or a "
            "larger batch help more than any schedule."
        )
        found.append((host, text))
    mean_s = time.mean_late_ranks_s
    late = (time.late_ranks_s or 0.0 if mean_s is None else mean_s) / now
    if late > 0.05:
        if mean_s is None:
            text = f"All-reduces wait for late ranks for {late:.0%} of the step: even out the ranks' work."
        else:
            slowest = time.late_ranks_s
            own = "" if slowest is None else f", the slowest rank during {slowest / now:.0%}"
            text = (
                f"Ranks wait for late ranks during {late:.0%} of the step on average{own}: even out the "
                "ranks' work."
            )
        found.append((late, text))
    other = (time.other_communication_s or 0.0) / now
    if other > 0.05:
        text = (
            f"The step waits for other collectives for {other:.0%} of its time, which no schedule of "
            "gradients changes."
        )
        found.append((other, text))
    return found


def _nothing_to_gain(made: Headroom) -> str:
    exposed = made.time.exposed_communication_s
    if made.workers == 1:
        return "One worker sends nothing: ask about more with --workers."
    if made.is_withheld or abs(made.replay_error) > max(DOUBTFUL, exposed / made.baseline_s):
        return "No advice is certain enough: see the warnings above."
    if exposed <= 0.02 * made.baseline_s:
        return "Communication is already hidden: another schedule gains nothing."
    return (
        f"{exposed * 1e3:,.3f} of {made.baseline_s * 1e3:,.3f} ms are exposed communication, and no order of "
        f"sending hides more: the network is the limit (the bound is {made.plain.bound_s * 1e3:,.3f} ms). "
        "Send fewer bytes, train larger batches, or use a faster network."
    )
