"""BERT-large (Devlin et al. 2019) for pre-training on sequences of 512 tokens."""

from pace.models.layers import Architecture, Value
from pace.models.transformer import attend

_FEATURES = 1024
_HEADS = 16
_LAYERS = 24
_VOCABULARY = 30_522
_LENGTH = 512


def bert_large() -> Architecture:
    """24 layers, normalized after each sublayer, with both pre-training heads; 336 million parameters.

    The masked-token head sees every token, as frameworks compute it; the next-sentence head sees
    the first token of each sequence.
    """
    net = Architecture(unit="tokens")
    words = net.embedding("embeddings.word", net.data(1), _VOCABULARY, _FEATURES)
    positions = net.embedding("embeddings.position", net.data(1), _LENGTH, _FEATURES)
    types = net.embedding("embeddings.type", net.data(1), 2, _FEATURES)
    x = net.layer_norm("embeddings.norm", net.add("embeddings.add", words, positions, types))
    x = net.dropout("embeddings.dropout", x)
    for layer in range(_LAYERS):
        x = _block(net, f"layer.{layer}", x)
    first = x.part(1 / _LENGTH)
    next_sentence = net.elementwise("pooler.tanh", net.linear("pooler.dense", first, _FEATURES))
    net.softmax_loss("next.loss", net.linear("next.decoder", next_sentence, 2))
    x = net.elementwise("masked.gelu", net.linear("masked.dense", x, _FEATURES))
    x = net.layer_norm("masked.norm", x)
    x = net.linear("masked.decoder", x, _VOCABULARY, tied_to="embeddings.word.weight")
    net.softmax_loss("masked.loss", x)
    return net


def _block(net: Architecture, name: str, x: Value) -> Value:
    query = net.linear(f"{name}.attention.query", x, _FEATURES)
    key = net.linear(f"{name}.attention.key", x, _FEATURES)
    value = net.linear(f"{name}.attention.value", x, _FEATURES)
    y = attend(net, f"{name}.attention", query, key, value, heads=_HEADS, length=_LENGTH)
    y = net.dropout(f"{name}.attention.dropout", net.linear(f"{name}.attention.output", y, _FEATURES))
    x = net.layer_norm(f"{name}.attention.norm", net.add(f"{name}.attention.add", y, x))
    y = net.elementwise(f"{name}.gelu", net.linear(f"{name}.intermediate", x, 4 * _FEATURES))
    y = net.dropout(f"{name}.dropout", net.linear(f"{name}.output", y, _FEATURES))
    return net.layer_norm(f"{name}.norm", net.add(f"{name}.add", y, x))
