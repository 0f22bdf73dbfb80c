"""Networks over tokens: the Transformer, BERT, GPT-2, and a recurrent translation model."""

from pace.models.layers import Architecture, Value

# The base Transformer for translation (Vaswani et al. 2017).
_TRANSFORMER_FEATURES = 512
_TRANSFORMER_INNER = 2048
_TRANSFORMER_HEADS = 8
_TRANSFORMER_LAYERS = 6
_TRANSFORMER_VOCABULARY = 32_000
_TRANSFORMER_LENGTH = 32  # tokens of a sentence, in both languages


def transformer() -> Architecture:
    """Return an encoder and a decoder of 6 layers each, normalized before each sublayer.

    Attention has no biases, projects its own queries, keys and values in one product, and those
    between decoder and encoder in three; embeddings and output are not tied. This is Sockeye's
    form, and it has the 164 gradients of the PACE paper's Table II. A unit is a pair of tokens, one
    of each language.
    """
    net = Architecture(unit="tokens")
    source = _embed(net, "source")
    for layer in range(_TRANSFORMER_LAYERS):
        name = f"encoder.{layer}"
        source = _self_attention(net, f"{name}.self", source)
        source = _feed_forward(net, f"{name}.ff", source)
    source = net.layer_norm("encoder.norm", source)
    target = _embed(net, "target")
    for layer in range(_TRANSFORMER_LAYERS):
        name = f"decoder.{layer}"
        target = _self_attention(net, f"{name}.self", target)
        target = _cross_attention(net, f"{name}.cross", target, source)
        target = _feed_forward(net, f"{name}.ff", target)
    target = net.layer_norm("decoder.norm", target)
    net.softmax_loss("loss", net.linear("output", target, _TRANSFORMER_VOCABULARY))
    return net


def _embed(net: Architecture, name: str) -> Value:
    x = net.embedding(f"{name}.embedding", net.data(1), _TRANSFORMER_VOCABULARY, _TRANSFORMER_FEATURES)
    x = net.scale(f"{name}.scale", x)
    x = net.elementwise(f"{name}.positions", x, backward=None)  # fixed positions are added
    return net.dropout(f"{name}.dropout", x)


def _self_attention(net: Architecture, name: str, x: Value) -> Value:
    y = net.layer_norm(f"{name}.norm", x)
    fused = net.linear(f"{name}.qkv", y, 3 * _TRANSFORMER_FEATURES, bias=False)
    fused = net.view(f"{name}.split", fused, 3, _TRANSFORMER_FEATURES)
    part = Value(layer=fused.layer, shape=(_TRANSFORMER_FEATURES,))
    y = _attend(net, name, part, part, part, heads=_TRANSFORMER_HEADS, length=_TRANSFORMER_LENGTH)
    y = net.linear(f"{name}.out", y, _TRANSFORMER_FEATURES, bias=False)
    return net.add(f"{name}.add", net.dropout(f"{name}.dropout", y), x)


def _cross_attention(net: Architecture, name: str, x: Value, memory: Value) -> Value:
    y = net.layer_norm(f"{name}.norm", x)
    query = net.linear(f"{name}.q", y, _TRANSFORMER_FEATURES, bias=False)
    key = net.linear(f"{name}.k", memory, _TRANSFORMER_FEATURES, bias=False)
    value = net.linear(f"{name}.v", memory, _TRANSFORMER_FEATURES, bias=False)
    y = _attend(net, name, query, key, value, heads=_TRANSFORMER_HEADS, length=_TRANSFORMER_LENGTH)
    y = net.linear(f"{name}.out", y, _TRANSFORMER_FEATURES, bias=False)
    return net.add(f"{name}.add", net.dropout(f"{name}.dropout", y), x)


def _feed_forward(net: Architecture, name: str, x: Value) -> Value:
    y = net.linear(f"{name}.fc1", net.layer_norm(f"{name}.norm", x), _TRANSFORMER_INNER)
    y = net.dropout(f"{name}.relu_dropout", net.elementwise(f"{name}.relu", y))
    y = net.dropout(f"{name}.dropout", net.linear(f"{name}.fc2", y, _TRANSFORMER_FEATURES))
    return net.add(f"{name}.add", y, x)


def _attend(
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


# BERT-large (Devlin et al. 2019), for pre-training on sequences of 512 tokens.
_BERT_FEATURES = 1024
_BERT_HEADS = 16
_BERT_LAYERS = 24
_BERT_VOCABULARY = 30_522
_BERT_LENGTH = 512


def bert_large() -> Architecture:
    """24 layers, normalized after each sublayer, with both pre-training heads; 336 million parameters.

    The masked-token head sees every token, as frameworks compute it; the next-sentence head sees
    the first token of each sequence.
    """
    net = Architecture(unit="tokens")
    words = net.embedding("embeddings.word", net.data(1), _BERT_VOCABULARY, _BERT_FEATURES)
    positions = net.embedding("embeddings.position", net.data(1), _BERT_LENGTH, _BERT_FEATURES)
    types = net.embedding("embeddings.type", net.data(1), 2, _BERT_FEATURES)
    x = net.layer_norm("embeddings.norm", net.add("embeddings.add", words, positions, types))
    x = net.dropout("embeddings.dropout", x)
    for layer in range(_BERT_LAYERS):
        x = _bert_block(net, f"layer.{layer}", x)
    first = x.part(1 / _BERT_LENGTH)
    next_sentence = net.elementwise("pooler.tanh", net.linear("pooler.dense", first, _BERT_FEATURES))
    net.softmax_loss("next.loss", net.linear("next.decoder", next_sentence, 2))
    x = net.elementwise("masked.gelu", net.linear("masked.dense", x, _BERT_FEATURES))
    x = net.layer_norm("masked.norm", x)
    x = net.linear("masked.decoder", x, _BERT_VOCABULARY, tied_to="embeddings.word.weight")
    net.softmax_loss("masked.loss", x)
    return net


def _bert_block(net: Architecture, name: str, x: Value) -> Value:
    query = net.linear(f"{name}.attention.query", x, _BERT_FEATURES)
    key = net.linear(f"{name}.attention.key", x, _BERT_FEATURES)
    value = net.linear(f"{name}.attention.value", x, _BERT_FEATURES)
    y = _attend(net, f"{name}.attention", query, key, value, heads=_BERT_HEADS, length=_BERT_LENGTH)
    y = net.dropout(f"{name}.attention.dropout", net.linear(f"{name}.attention.output", y, _BERT_FEATURES))
    x = net.layer_norm(f"{name}.attention.norm", net.add(f"{name}.attention.add", y, x))
    y = net.elementwise(f"{name}.gelu", net.linear(f"{name}.intermediate", x, 4 * _BERT_FEATURES))
    y = net.dropout(f"{name}.dropout", net.linear(f"{name}.output", y, _BERT_FEATURES))
    return net.layer_norm(f"{name}.norm", net.add(f"{name}.add", y, x))


# GPT-2 (Radford et al. 2019) in its four sizes, for sequences of 1024 tokens.
_GPT2_VOCABULARY = 50_257
_GPT2_LENGTH = 1024
_GPT2_FEATURES_PER_HEAD = 64


def gpt2(*, layers: int, features: int) -> Architecture:
    """Return the decoder, normalized before each sublayer, its output tied to the embedding."""
    net = Architecture(unit="tokens")
    tokens = net.embedding("wte", net.data(1), _GPT2_VOCABULARY, features)
    positions = net.embedding("wpe", net.data(1), _GPT2_LENGTH, features)
    x = net.dropout("drop", net.add("embed", tokens, positions))
    for layer in range(layers):
        x = _gpt2_block(net, f"h.{layer}", x)
    x = net.layer_norm("ln_f", x)
    net.softmax_loss("loss", net.linear("lm_head", x, _GPT2_VOCABULARY, bias=False, tied_to="wte.weight"))
    return net


def _gpt2_block(net: Architecture, name: str, x: Value) -> Value:
    features = x.size
    y = net.linear(f"{name}.attn.c_attn", net.layer_norm(f"{name}.ln_1", x), 3 * features)
    y = net.view(f"{name}.attn.split", y, 3, features)
    part = Value(layer=y.layer, shape=(features,))
    y = _attend(
        net, f"{name}.attn", part, part, part, heads=features // _GPT2_FEATURES_PER_HEAD, length=_GPT2_LENGTH
    )
    y = net.linear(f"{name}.attn.c_proj", y, features)
    x = net.add(f"{name}.attn.add", net.dropout(f"{name}.attn.dropout", y), x)
    y = net.linear(f"{name}.mlp.c_fc", net.layer_norm(f"{name}.ln_2", x), 4 * features)
    y = net.linear(f"{name}.mlp.c_proj", net.elementwise(f"{name}.mlp.gelu", y), features)
    return net.add(f"{name}.mlp.add", net.dropout(f"{name}.mlp.dropout", y), x)


# A recurrent translation model with attention (Luong et al. 2015), unrolled over time.
_SEQ2SEQ_FEATURES = 512
_SEQ2SEQ_VOCABULARY = 32_000
_SEQ2SEQ_LENGTH = 22  # tokens of a sentence, in both languages


def seq2seq() -> Architecture:
    """Return the model; a unit is a pair of tokens, one of each language.

    The PACE paper's Table II counts a Seq2Seq model (32 gradients, 67.2 million parameters, 293 ops)
    without describing it. This is the plainest model known to us that meets the three: an encoder of
    two bidirectional LSTM layers, a decoder of two, general attention once over all steps.
    """
    net = Architecture(unit="tokens")
    source = net.embedding("source.embedding", net.data(1), _SEQ2SEQ_VOCABULARY, _SEQ2SEQ_FEATURES)
    steps = [[source.part(1 / _SEQ2SEQ_LENGTH)]] * _SEQ2SEQ_LENGTH
    for layer in (1, 2):
        forward = _unroll(net, f"encoder.{layer}.forward", steps, [])
        backward = _unroll(net, f"encoder.{layer}.backward", steps[::-1], [])[::-1]
        steps = [list(pair) for pair in zip(forward, backward, strict=True)]
    memory = net.stack("encoder.stack", *(value for step in steps for value in step))
    last = Value(layer=memory.layer, shape=memory.shape, share=1 / _SEQ2SEQ_LENGTH)
    state = net.elementwise("bridge.tanh", net.linear("bridge", last, _SEQ2SEQ_FEATURES))

    target = net.embedding("target.embedding", net.data(1), _SEQ2SEQ_VOCABULARY, _SEQ2SEQ_FEATURES)
    steps = [[target.part(1 / _SEQ2SEQ_LENGTH)]] * _SEQ2SEQ_LENGTH
    for layer in (1, 2):
        steps = [[value] for value in _unroll(net, f"decoder.{layer}", steps, [state])]
    query = net.stack("decoder.stack", *(value for step in steps for value in step))
    key = net.linear("attention.key", memory, _SEQ2SEQ_FEATURES, bias=False)
    scores = net.matmul("attention.scores", query, key, _SEQ2SEQ_LENGTH, inner=_SEQ2SEQ_FEATURES)
    weights = net.elementwise("attention.softmax", scores)
    context = net.matmul("attention.context", weights, memory, memory.size, inner=_SEQ2SEQ_LENGTH)
    joined = net.concat("attention.concat", context, query)
    hidden = net.linear("attention.hidden", joined, _SEQ2SEQ_FEATURES, bias=False)
    hidden = net.dropout("dropout", net.elementwise("attention.tanh", hidden))
    net.softmax_loss("loss", net.linear("output", hidden, _SEQ2SEQ_VOCABULARY))
    return net


def _unroll(net: Architecture, name: str, steps: list[list[Value]], state: list[Value]) -> list[Value]:
    results = []
    for number, x in enumerate(steps):
        state = [net.lstm_cell(f"{name}.step{number}", name, x, state, _SEQ2SEQ_FEATURES)]
        results += state
    return results
