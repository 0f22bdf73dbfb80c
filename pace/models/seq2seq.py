"""A recurrent translation model with attention (Luong et al. 2015), unrolled over time.

The PACE paper's Table II counts a Seq2Seq model (32 gradients, 67.2 million parameters, 293 ops)
without describing it. This is the plainest model known to us that meets the three: an encoder of
two bidirectional LSTM layers, a decoder of two, general attention once over all steps.
"""

from pace.models.layers import Architecture, Value

_FEATURES = 512
_VOCABULARY = 32_000
_LENGTH = 22  # tokens of a sentence, in both languages


def seq2seq() -> Architecture:
    """Return the model; a unit is a pair of tokens, one of each language."""
    net = Architecture(unit="tokens")
    source = net.embedding("source.embedding", net.data(1), _VOCABULARY, _FEATURES)
    steps = [[source.part(1 / _LENGTH)]] * _LENGTH
    for layer in (1, 2):
        forward = _unroll(net, f"encoder.{layer}.forward", steps, [])
        backward = _unroll(net, f"encoder.{layer}.backward", steps[::-1], [])[::-1]
        steps = [list(pair) for pair in zip(forward, backward, strict=True)]
    memory = net.stack("encoder.stack", *(value for step in steps for value in step))
    last = Value(layer=memory.layer, shape=memory.shape, share=1 / _LENGTH)
    state = net.elementwise("bridge.tanh", net.linear("bridge", last, _FEATURES))

    target = net.embedding("target.embedding", net.data(1), _VOCABULARY, _FEATURES)
    steps = [[target.part(1 / _LENGTH)]] * _LENGTH
    for layer in (1, 2):
        steps = [[value] for value in _unroll(net, f"decoder.{layer}", steps, [state])]
    query = net.stack("decoder.stack", *(value for step in steps for value in step))
    key = net.linear("attention.key", memory, _FEATURES, bias=False)
    scores = net.matmul("attention.scores", query, key, _LENGTH, inner=_FEATURES)
    weights = net.elementwise("attention.softmax", scores)
    context = net.matmul("attention.context", weights, memory, memory.size, inner=_LENGTH)
    joined = net.concat("attention.concat", context, query)
    hidden = net.linear("attention.hidden", joined, _FEATURES, bias=False)
    hidden = net.dropout("dropout", net.elementwise("attention.tanh", hidden))
    net.softmax_loss("loss", net.linear("output", hidden, _VOCABULARY))
    return net


def _unroll(net: Architecture, name: str, steps: list[list[Value]], state: list[Value]) -> list[Value]:
    results = []
    for number, x in enumerate(steps):
        state = [net.lstm_cell(f"{name}.step{number}", name, x, state, _FEATURES)]
        results += state
    return results
