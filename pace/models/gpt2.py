"""GPT-2 (Radford et al. 2019) in its four sizes, for sequences of 1024 tokens."""

from pace.models.layers import Architecture, Value
from pace.models.transformer import attend

_VOCABULARY = 50_257
_LENGTH = 1024
_FEATURES_PER_HEAD = 64


def gpt2(*, layers: int, features: int) -> Architecture:
    """Return the decoder, normalized before each sublayer, its output tied to the embedding."""
    net = Architecture(unit="tokens")
    tokens = net.embedding("wte", net.data(1), _VOCABULARY, features)
    positions = net.embedding("wpe", net.data(1), _LENGTH, features)
    x = net.dropout("drop", net.add("embed", tokens, positions))
    for layer in range(layers):
        x = _block(net, f"h.{layer}", x)
    x = net.layer_norm("ln_f", x)
    net.softmax_loss("loss", net.linear("lm_head", x, _VOCABULARY, bias=False, tied_to="wte.weight"))
    return net


def _block(net: Architecture, name: str, x: Value) -> Value:
    features = x.size
    y = net.linear(f"{name}.attn.c_attn", net.layer_norm(f"{name}.ln_1", x), 3 * features)
    y = net.view(f"{name}.attn.split", y, 3, features)
    part = Value(layer=y.layer, shape=(features,))
    y = attend(net, f"{name}.attn", part, part, part, heads=features // _FEATURES_PER_HEAD, length=_LENGTH)
    y = net.linear(f"{name}.attn.c_proj", y, features)
    x = net.add(f"{name}.attn.add", net.dropout(f"{name}.attn.dropout", y), x)
    y = net.linear(f"{name}.mlp.c_fc", net.layer_norm(f"{name}.ln_2", x), 4 * features)
    y = net.linear(f"{name}.mlp.c_proj", net.elementwise(f"{name}.mlp.gelu", y), features)
    return net.add(f"{name}.mlp.add", net.dropout(f"{name}.mlp.dropout", y), x)
