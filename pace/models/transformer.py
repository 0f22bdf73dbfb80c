"""The base Transformer for translation (Vaswani et al. 2017), and the parts that its relatives share."""

from pace.models.layers import Architecture, Value

_FEATURES = 512
_INNER = 2048
_HEADS = 8
_LAYERS = 6
_VOCABULARY = 32_000
_LENGTH = 32  # tokens of a sentence, in both languages


def transformer() -> Architecture:
    """Return an encoder and a decoder of 6 layers each, normalized before each sublayer.

    Attention has no biases, projects its own queries, keys and values in one product, and those
    between decoder and encoder in three; embeddings and output are not tied. This is Sockeye's
    form, and it has the 164 gradients of the PACE paper's Table II. A unit is a pair of tokens, one
    of each language.
    """
    net = Architecture(unit="tokens")
    source = _embed(net, "source")
    for layer in range(_LAYERS):
        name = f"encoder.{layer}"
        source = _self_attention(net, f"{name}.self", source)
        source = _feed_forward(net, f"{name}.ff", source)
    source = net.layer_norm("encoder.norm", source)
    target = _embed(net, "target")
    for layer in range(_LAYERS):
        name = f"decoder.{layer}"
        target = _self_attention(net, f"{name}.self", target)
        target = _cross_attention(net, f"{name}.cross", target, source)
        target = _feed_forward(net, f"{name}.ff", target)
    target = net.layer_norm("decoder.norm", target)
    net.softmax_loss("loss", net.linear("output", target, _VOCABULARY))
    return net


def _embed(net: Architecture, name: str) -> Value:
    x = net.embedding(f"{name}.embedding", net.data(1), _VOCABULARY, _FEATURES)
    x = net.scale(f"{name}.scale", x)
    x = net.elementwise(f"{name}.positions", x, backward=None)  # fixed positions are added
    return net.dropout(f"{name}.dropout", x)


def _self_attention(net: Architecture, name: str, x: Value) -> Value:
    y = net.layer_norm(f"{name}.norm", x)
    fused = net.linear(f"{name}.qkv", y, 3 * _FEATURES, bias=False)
    fused = net.view(f"{name}.split", fused, 3, _FEATURES)
    part = Value(layer=fused.layer, shape=(_FEATURES,))
    y = attend(net, name, part, part, part, heads=_HEADS, length=_LENGTH)
    y = net.linear(f"{name}.out", y, _FEATURES, bias=False)
    return net.add(f"{name}.add", net.dropout(f"{name}.dropout", y), x)


def _cross_attention(net: Architecture, name: str, x: Value, memory: Value) -> Value:
    y = net.layer_norm(f"{name}.norm", x)
    query = net.linear(f"{name}.q", y, _FEATURES, bias=False)
    key = net.linear(f"{name}.k", memory, _FEATURES, bias=False)
    value = net.linear(f"{name}.v", memory, _FEATURES, bias=False)
    y = attend(net, name, query, key, value, heads=_HEADS, length=_LENGTH)
    y = net.linear(f"{name}.out", y, _FEATURES, bias=False)
    return net.add(f"{name}.add", net.dropout(f"{name}.dropout", y), x)


def _feed_forward(net: Architecture, name: str, x: Value) -> Value:
    y = net.linear(f"{name}.fc1", net.layer_norm(f"{name}.norm", x), _INNER)
    y = net.dropout(f"{name}.relu_dropout", net.elementwise(f"{name}.relu", y))
    y = net.dropout(f"{name}.dropout", net.linear(f"{name}.fc2", y, _FEATURES))
    return net.add(f"{name}.add", y, x)


def attend(
    net: Architecture, name: str, query: Value, key: Value, value: Value, *, heads: int, length: int
) -> Value:
    """Scaled dot-product attention over `length` tokens, as frameworks without a fused kernel run it.

    A framework reaches its batched products by reshape, transpose, reshape for each operand, and
    back for the result. Scores are counted in full: masking a score does not save its product.
    """
    features = query.size
    query = _split_heads(net, f"{name}.query", query)
    key = _split_heads(net, f"{name}.key", key)
    value = _split_heads(net, f"{name}.value", value)
    query = net.scale(f"{name}.query.scale", query)
    scores = net.matmul(f"{name}.scores", query, key, heads * length, inner=features // heads)
    scores = net.elementwise(f"{name}.mask", scores, backward=None)
    weights = net.elementwise(f"{name}.softmax", scores)
    weights = net.dropout(f"{name}.weights_dropout", weights)
    context = net.matmul(f"{name}.context", weights, value, features, inner=length)
    return _split_heads(net, f"{name}.context", context)


def _split_heads(net: Architecture, name: str, x: Value) -> Value:
    x = net.view(f"{name}.reshape1", x, *x.shape)
    x = net.transpose(f"{name}.transpose", x)
    return net.view(f"{name}.reshape2", x, *x.shape)
