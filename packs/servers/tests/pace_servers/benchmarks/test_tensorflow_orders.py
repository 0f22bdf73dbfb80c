"""Whether TensorFlow sends parameters in an order: read from what it executed, and from what arrived."""

import pytest

from benchmarks.studies.papers.tictac_tensorflow import share_in_order, turns_that_wait_for_arrivals

Node = tuple[str, str, list[str], str]

# Recorded of TensorFlow 2.21, without gradients: what one server and one worker executed for two variables.
READ: list[Node] = [
    ("Identity/ReadVariableOp", "ReadVariableOp", ["layer0"], ""),
    ("Identity/ReadVariableOp_S6", "_Send", ["Identity/ReadVariableOp"], "copy 0"),
    ("Identity/ReadVariableOp_S7", "_Recv", [], "copy 0"),
    ("Identity_1/ReadVariableOp_S12", "_Send", ["Identity_1/ReadVariableOp"], "copy 1"),
    ("Identity_1/ReadVariableOp_S13", "_Recv", [], "copy 1"),
    ("layer0", "VarHandleOp", [], ""),
    ("layer1", "VarHandleOp", [], ""),
]
ANSWER: list[Node] = [
    ("received/ctrl_S12", "Const", ["^received"], ""),
    ("received_S13", "_Send", ["received/ctrl_S12"], "answer"),
    ("received_S14", "_Recv", [], "answer"),
    ("Identity_1/ReadVariableOp", "ReadVariableOp", ["layer1", "^received_S14"], ""),
]
RECORDED: dict[str, list[Node]] = {
    # The optimizer moved the edge from the worker's no_op to the server.
    "no_op": [
        *READ,
        ("Identity_1/ReadVariableOp", "ReadVariableOp", ["layer1", "^Identity/ReadVariableOp"], ""),
    ],
    # The answer waits for an empty tensor, which overtakes the copy.
    "control edge": [
        *READ,
        *ANSWER,
        ("received", "PyFunc", ["^Identity_S10"], ""),
        ("Identity/ctrl_S8", "Const", ["^Identity/ReadVariableOp"], ""),
        ("Identity_S9", "_Send", ["Identity/ctrl_S8"], "beside copy 0"),
        ("Identity_S10", "_Recv", [], "beside copy 0"),
    ],
    "the copy itself": [*READ, *ANSWER, ("received", "PyFunc", ["Identity/ReadVariableOp_S7"], "")],
}


@pytest.mark.parametrize(
    ("answer", "held"), [("no_op", []), ("control edge", []), ("the copy itself", [1])], ids=str
)
def test_an_order_in_tensorflow_is_read_from_the_executed_graph(answer: str, held: list[int]) -> None:
    """The second copy waits for the first one's arrival only if the answer takes the copy itself."""
    nodes = [
        {"name": name, "op": op, "input": given, "attr": {"tensor_name": {"s": tensor}}}
        for name, op, given, tensor in RECORDED[answer]
    ]
    assert turns_that_wait_for_arrivals({"partitionGraphs": [{"node": nodes}]}) == held


def test_arrivals_in_turn_are_counted() -> None:
    """Of three parameters, the second arrives before the first: one of two neighbors is in order."""
    rows = [
        {
            "nodeName": "RecvTensor",
            "allStartMicros": str(start),
            "allEndRelMicros": "10",
            "timelineLabel": f"[1.0MB] [5.0Gb/s] edge_{5 * turn}_{name} from /job:ps to /job:worker",
        }
        for turn, (name, start) in enumerate(
            [("Identity/ReadVariableOp", 20), ("Identity_1", 0), ("Identity_2/ReadVariableOp", 40)]
        )
    ]
    rows.append({**rows[0], "timelineLabel": "[4B] edge_24_gradient0 from /job:worker to /job:ps"})
    assert share_in_order({"stepStats": {"devStats": [{"nodeStats": rows}]}}) == 0.5
