"""Inception-v3 (Szegedy et al. 2016) for 299 x 299 images and 1000 classes, without the auxiliary head."""

from pace.models.layers import Architecture, Value


def inception_v3() -> Architecture:
    """94 convolutions, each normalized, in branches that join by concatenation; torchvision's form."""
    net = Architecture(unit="images")
    x = _conv(net, "conv1", net.data(3, 299, 299), 32, 3, stride=2)
    x = _conv(net, "conv2", x, 32, 3)
    x = _conv(net, "conv3", x, 64, 3, padding=1)
    x = net.max_pool("pool1", x, 3, stride=2)
    x = _conv(net, "conv4", x, 80, 1)
    x = _conv(net, "conv5", x, 192, 3)
    x = net.max_pool("pool2", x, 3, stride=2)
    for name, pool_channels in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        x = _block_a(net, name, x, pool_channels)
    x = _block_b(net, "mixed6a", x)
    for name, channels in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        x = _block_c(net, name, x, channels)
    x = _block_d(net, "mixed7a", x)
    for name in ("mixed7b", "mixed7c"):
        x = _block_e(net, name, x)
    x = net.avg_pool("avgpool", x, 8)
    x = net.view("flatten", net.dropout("dropout", x), x.size)
    net.softmax_loss("loss", net.linear("fc", x, 1000))
    return net


def _conv(
    net: Architecture,
    name: str,
    x: Value,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
) -> Value:
    x = net.conv(f"{name}.conv", x, channels, kernel, stride=stride, padding=padding)
    return net.elementwise(f"{name}.relu", net.batch_norm(f"{name}.bn", x))


def _row(net: Architecture, name: str, x: Value, channels: int, taps: int) -> Value:
    return _conv(net, name, x, channels, (1, taps), padding=(0, taps // 2))


def _column(net: Architecture, name: str, x: Value, channels: int, taps: int) -> Value:
    return _conv(net, name, x, channels, (taps, 1), padding=(taps // 2, 0))


def _pooled(net: Architecture, name: str, x: Value, channels: int) -> Value:
    return _conv(net, f"{name}.pool_1x1", net.avg_pool(f"{name}.pool", x, 3, padding=1), channels, 1)


def _block_a(net: Architecture, name: str, x: Value, pool_channels: int) -> Value:
    one = _conv(net, f"{name}.1x1", x, 64, 1)
    five = _conv(net, f"{name}.5x5_1", x, 48, 1)
    five = _conv(net, f"{name}.5x5_2", five, 64, 5, padding=2)
    three = _conv(net, f"{name}.3x3_1", x, 64, 1)
    three = _conv(net, f"{name}.3x3_2", three, 96, 3, padding=1)
    three = _conv(net, f"{name}.3x3_3", three, 96, 3, padding=1)
    return net.concat(f"{name}.concat", one, five, three, _pooled(net, name, x, pool_channels))


def _block_b(net: Architecture, name: str, x: Value) -> Value:
    three = _conv(net, f"{name}.3x3", x, 384, 3, stride=2)
    double = _conv(net, f"{name}.double_1", x, 64, 1)
    double = _conv(net, f"{name}.double_2", double, 96, 3, padding=1)
    double = _conv(net, f"{name}.double_3", double, 96, 3, stride=2)
    return net.concat(f"{name}.concat", three, double, net.max_pool(f"{name}.pool", x, 3, stride=2))


def _block_c(net: Architecture, name: str, x: Value, channels: int) -> Value:
    one = _conv(net, f"{name}.1x1", x, 192, 1)
    seven = _conv(net, f"{name}.7x7_1", x, channels, 1)
    seven = _row(net, f"{name}.7x7_2", seven, channels, 7)
    seven = _column(net, f"{name}.7x7_3", seven, 192, 7)
    double = _conv(net, f"{name}.double_1", x, channels, 1)
    double = _column(net, f"{name}.double_2", double, channels, 7)
    double = _row(net, f"{name}.double_3", double, channels, 7)
    double = _column(net, f"{name}.double_4", double, channels, 7)
    double = _row(net, f"{name}.double_5", double, 192, 7)
    return net.concat(f"{name}.concat", one, seven, double, _pooled(net, name, x, 192))


def _block_d(net: Architecture, name: str, x: Value) -> Value:
    three = _conv(net, f"{name}.3x3_1", x, 192, 1)
    three = _conv(net, f"{name}.3x3_2", three, 320, 3, stride=2)
    seven = _conv(net, f"{name}.7x7_1", x, 192, 1)
    seven = _row(net, f"{name}.7x7_2", seven, 192, 7)
    seven = _column(net, f"{name}.7x7_3", seven, 192, 7)
    seven = _conv(net, f"{name}.7x7_4", seven, 192, 3, stride=2)
    return net.concat(f"{name}.concat", three, seven, net.max_pool(f"{name}.pool", x, 3, stride=2))


def _block_e(net: Architecture, name: str, x: Value) -> Value:
    one = _conv(net, f"{name}.1x1", x, 320, 1)
    three = _conv(net, f"{name}.3x3_1", x, 384, 1)
    three_row = _row(net, f"{name}.3x3_2a", three, 384, 3)
    three_column = _column(net, f"{name}.3x3_2b", three, 384, 3)
    double = _conv(net, f"{name}.double_1", x, 448, 1)
    double = _conv(net, f"{name}.double_2", double, 384, 3, padding=1)
    double_row = _row(net, f"{name}.double_3a", double, 384, 3)
    double_column = _column(net, f"{name}.double_3b", double, 384, 3)
    pooled = _pooled(net, name, x, 192)
    return net.concat(f"{name}.concat", one, three_row, three_column, double_row, double_column, pooled)
