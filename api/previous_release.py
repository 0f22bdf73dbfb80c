"""Converts schedules, options and what-ifs from and to the form that the previous release stores.

During an update, two releases use one database. Options of tasks and what-ifs are therefore written with the
names of the previous release, and stored schedules are converted when they are read.
"""

import json
import re
from typing import Any

from pace.client.what_if_documents import WhatIfQuestion
from pace.documents.options import Options
from pace.documents.profile import ELEMENT_BYTES
from pace.documents.schedule import Schedule
from pace.documents.schedule_rules import server_links

# The first bytes of ``Schedule.to_json``; schedules of earlier releases begin differently.
_CURRENT = b'{\n  "schema_version": 1,\n  "exchange": "'
# Fields that earlier releases do not know; left out if they have their defaults.
_NEW_FIELDS = ("cluster", "memory_bytes", "partition_bytes", "discipline")
# The previous release's names of renamed policies.
_EARLIER_POLICIES = {"pace": "optimal", "paper": "pace"}
_CURRENT_POLICIES = {earlier: name for name, earlier in _EARLIER_POLICIES.items()}
_NAMED_POLICY = re.compile(rb'("(?:policy|baseline)":")(\w+)(?=")')


def stored_options(options: Options) -> str:
    """Return the canonical JSON of options, with the previous release's names as far as it has them."""
    fields = options.model_dump(mode="json")
    default = Options().model_dump(mode="json")
    for name in _NEW_FIELDS:
        if fields[name] == default[name]:
            del fields[name]
    exchange, framework = fields.pop("exchange"), fields.pop("framework")
    fields["target"] = framework or exchange or "pace"
    if framework is not None and exchange is not None:
        fields["exchange"] = exchange
    if fields["fusion"] == "paper":
        fields["fusion"] = "pace"
    return json.dumps(fields, sort_keys=True, separators=(",", ":"))


def read_options(text: str) -> Options:
    """Return the options that ``stored_options`` wrote, in this release or the previous one."""
    fields: dict[str, Any] = json.loads(text)
    target = fields.pop("target", "pace")
    if target in ("ddp", "horovod"):
        fields["framework"] = target
    elif target != "pace":
        fields["exchange"] = target
    if fields.get("fusion") == "pace":
        fields["fusion"] = "paper"
    return Options.model_validate(fields)


def stored_question(question: WhatIfQuestion) -> str:
    """Return the canonical JSON of a what-if's question, with the previous release's names of policies."""
    return json.dumps(
        _renamed(question.model_dump(mode="json"), _EARLIER_POLICIES), sort_keys=True, separators=(",", ":")
    )


def read_question(text: str) -> WhatIfQuestion:
    """Return the question that ``stored_question`` wrote, in this release or the previous one."""
    return WhatIfQuestion.model_validate_json(json.dumps(_renamed(json.loads(text), _CURRENT_POLICIES)))


def _renamed(question: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    grid = dict(question["grid"])
    if "policies" in grid:
        grid["policies"] = [names.get(name, name) for name in grid["policies"]]
    if "baseline" in grid:
        grid["baseline"] = names.get(grid["baseline"], grid["baseline"])
    return question | {"grid": grid}


def stored_what_if(document: bytes) -> bytes:
    """Return a what-if's compact JSON with the previous release's names of policies."""
    return _with_policies(document, _EARLIER_POLICIES)


def current_what_if(document: bytes) -> bytes:
    """Return a stored what-if as this release writes it."""
    return _with_policies(document, _CURRENT_POLICIES)


def _with_policies(document: bytes, names: dict[str, str]) -> bytes:
    return _NAMED_POLICY.sub(lambda at: at[1] + names.get(at[2].decode(), at[2].decode()).encode(), document)


def current_schedule(document: bytes) -> bytes:
    """Return a stored schedule as this release writes it."""
    if document.startswith(_CURRENT):
        return document
    old: dict[str, Any] = json.loads(document)
    if "transfers" in old:
        return document
    match old["schema_version"]:
        case 1:
            fields = _of_allreduces(old)
        case 2:
            fields = _of_servers(old)
        case _:
            fields = _of_halves(old)
    solver = dict(old["solver"])
    if solver["fusion"] == "pace":
        solver["fusion"] = "paper"
    kept = {name: old[name] for name in ("profile_sha256", "fingerprint", "predicted")}
    return Schedule.model_validate(kept | {"solver": solver} | fields).to_json()


def _of_allreduces(old: dict[str, Any]) -> dict[str, Any]:
    proof = dict(old["certificate"])
    proof["set"], proof["total_s"] = proof.pop("groups"), proof.pop("total_allreduce_s")
    groups = [dict(group) for group in old["groups"]]
    for group in groups:
        group["tensors"], group["transfer_s"] = group.pop("gradients"), group.pop("allreduce_s")
    return {
        "exchange": "allreduce",
        "framework": None if old["target"] == "pace" else old["target"],
        "execution": _one_at_a_time(old),
        "groups": groups,
        "transfers": [segment | {"op": "all-reduce"} for segment in old["segments"]],
        "proofs": [proof],
        "bound": old["bound"],
        "chain_bound": old["chain_bound"],
    }


def _of_servers(old: dict[str, Any]) -> dict[str, Any]:
    execution, bound = old["execution"], dict(old["bound"])
    bound["round_trip_s"], bound["latency_s"] = bound.pop("latency_s"), bound.pop("lost_s")
    groups = [dict(group) for group in old["groups"]]
    for group in groups:
        group["tensors"] = group.pop("gradients")
    proofs = [dict(certificate) for certificate in old["certificates"]]
    for proof in proofs:
        proof["num_transfers"], proof["total_s"] = proof.pop("num_segments"), proof.pop("total_transfer_s")
    transfers = []
    for segment in old["segments"]:
        same = {name: segment[name] for name in ("group", "offset_bytes", "size_bytes", "priority")}
        for way, op in enumerate(("push", "pull")):
            times = {"start_s": segment[f"{op}_start_s"], "end_s": segment[f"{op}_end_s"]}
            transfers.append(same | times | {"op": op, "link": 2 * segment["link"] + way})
    return {
        "exchange": "servers",
        "execution": {
            "max_in_flight": 1 if transfers else 0,
            "max_segment_bytes": execution["max_segment_bytes"],
            "discipline": execution["order"],
            "connection_bytes_per_s": execution["pace_bytes_per_s"],
        },
        "links": server_links(old["cluster"]["exchange"]["servers"]),
        "groups": groups,
        "transfers": transfers,
        "proofs": proofs,
        "bound": bound,
        "chain_bound": old["chain_bound"],
        "cluster": old["cluster"],
    }


def _of_halves(old: dict[str, Any]) -> dict[str, Any]:
    shards = [dict(shard) for shard in old["shards"]]
    for shard in shards:
        shard["tensors"] = shard.pop("gradients")
    first, groups = len(old["reduce_scatters"]), []
    for op, calls in (("reduce-scatter", old["reduce_scatters"]), ("all-gather", old["all_gathers"])):
        for call in calls:
            members = [shards[number] for number in call["shards"]]
            groups.append(
                {
                    "op": op,
                    "shards": call["shards"],
                    "tensors": [name for shard in members for name in shard["tensors"]],
                    "dtype": members[0]["dtype"],
                    "size_bytes": call["size_bytes"],
                    "ready_s": call["time_s"] if op == "reduce-scatter" else 0.0,
                    "tail_s": 0.0 if op == "reduce-scatter" else call["time_s"],
                    "transfer_s": call["duration_s"],
                }
            )
    transfers = []
    for segment in old["segments"]:
        group = segment["call"] + (first if segment["half"] == "all-gather" else 0)
        column_bytes = old["workers"] * {str(d): n for d, n in ELEMENT_BYTES.items()}[groups[group]["dtype"]]
        transfers.append(
            {name: segment[name] for name in ("priority", "start_s", "end_s")}
            | {"op": segment["half"], "group": group}
            | {"offset_bytes": segment["first_column"] * column_bytes}
            | {"size_bytes": segment["num_columns"] * column_bytes}
        )
    proof = dict(old["certificate"])
    gathers = [number + first for number in proof.pop("all_gathers")]
    proof["set"] = [*proof.pop("reduce_scatters"), *gathers]
    proof["total_s"] = proof.pop("total_reduce_scatter_s") + proof.pop("total_all_gather_s")
    return {
        "exchange": "sharded",
        "execution": _one_at_a_time(old),
        "groups": groups,
        "transfers": transfers,
        "proofs": [proof],
        "bound": old["set_bound"],
        "norm_bound": old["norm_bound"],
        "sharding": {name: old[name] for name in ("workers", "update", "norm")} | {"shards": shards},
    }


def _one_at_a_time(old: dict[str, Any]) -> dict[str, Any]:
    execution = dict(old["execution"])
    execution["max_in_flight"] = min(execution.pop("credit_bytes"), 1)
    return execution
