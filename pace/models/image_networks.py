"""Networks that classify images into 1000 classes: AlexNet, VGG, ResNet-50 and Inception-v3."""

from pace.models.layers import Architecture, Value

# AlexNet (Krizhevsky 2014, one tower), for 224 x 224 images:
# channels, kernel, stride, padding, and whether a pooling layer follows.
_ALEXNET_CONVOLUTIONS = (
    (64, 11, 4, 2, True),
    (192, 5, 1, 2, True),
    (384, 3, 1, 1, False),
    (256, 3, 1, 1, False),
    (256, 3, 1, 1, True),
)


def alexnet() -> Architecture:
    """Five convolutions and three linear layers with biases: 16 gradients, 61.1 million parameters."""
    net = Architecture(unit="images")
    x = net.data(3, 224, 224)
    for layer, (channels, kernel, stride, padding, pooled) in enumerate(_ALEXNET_CONVOLUTIONS, start=1):
        x = net.conv(f"conv{layer}", x, channels, kernel, stride=stride, padding=padding, bias=True)
        x = net.elementwise(f"relu{layer}", x)
        if pooled:
            x = net.max_pool(f"pool{layer}", x, 3, stride=2)
    x = net.view("flatten", x, x.size)
    for layer in (6, 7):
        x = net.dropout(f"drop{layer}", x)
        x = net.linear(f"fc{layer}", x, 4096)
        x = net.elementwise(f"relu{layer}", x)
    x = net.linear("fc8", x, 1000)
    net.softmax_loss("loss", x)
    return net


# VGG (Simonyan and Zisserman 2015, configurations D and E), for 224 x 224 images:
# channels of a block's convolutions.
_VGG_CHANNELS = (64, 128, 256, 512, 512)


def vgg16() -> Architecture:
    """13 convolutions and 3 linear layers with biases: 32 gradients, 138.4 million parameters."""
    return _vgg((2, 2, 3, 3, 3))


def vgg19() -> Architecture:
    """16 convolutions and 3 linear layers with biases: 38 gradients, 143.7 million parameters."""
    return _vgg((2, 2, 4, 4, 4))


def _vgg(convolutions: tuple[int, ...]) -> Architecture:
    """Return the network whose blocks have so many convolutions."""
    net = Architecture(unit="images")
    x = net.data(3, 224, 224)
    for block, (count, channels) in enumerate(zip(convolutions, _VGG_CHANNELS, strict=True), start=1):
        for layer in range(1, count + 1):
            x = net.conv(f"conv{block}_{layer}", x, channels, 3, padding=1, bias=True)
            x = net.elementwise(f"relu{block}_{layer}", x)
        x = net.max_pool(f"pool{block}", x, 2, stride=2)
    x = net.view("flatten", x, x.size)
    for layer in (6, 7):
        x = net.linear(f"fc{layer}", x, 4096)
        x = net.elementwise(f"relu{layer}", x)
        x = net.dropout(f"drop{layer}", x)
    x = net.linear("fc8", x, 1000)
    net.softmax_loss("loss", x)
    return net


# ResNet-50, for 224 x 224 images, in two forms that frameworks ship.
_RESNET_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_RESNET_EXPANSION = 4


def resnet50_preactivation() -> Architecture:
    """He et al. 2016, "Identity Mappings": normalize before each convolution; MXNet's form.

    53 convolutions, 51 normalizations (one of them of the images, none on the shortcuts) and one
    linear layer: the 157 gradients of the PACE paper's Table II.
    """
    net = Architecture(unit="images")
    x = net.batch_norm("bn_data", net.data(3, 224, 224))
    x = net.conv("conv0", x, 64, 7, stride=2, padding=3)
    x = net.elementwise("relu0", net.batch_norm("bn0", x))
    x = net.max_pool("pool0", x, 3, stride=2, padding=1)
    for stage, (units, channels) in enumerate(_RESNET_STAGES, start=1):
        for unit in range(1, units + 1):
            stride = 2 if stage > 1 and unit == 1 else 1
            x = _preactivation_unit(net, f"stage{stage}.unit{unit}", x, channels, stride, project=unit == 1)
    x = net.elementwise("relu1", net.batch_norm("bn1", x))
    return _classify(net, x)


def _preactivation_unit(
    net: Architecture, name: str, x: Value, channels: int, stride: int, *, project: bool
) -> Value:
    first = y = net.elementwise(f"{name}.relu1", net.batch_norm(f"{name}.bn1", x))
    y = net.conv(f"{name}.conv1", y, channels, 1)
    y = net.elementwise(f"{name}.relu2", net.batch_norm(f"{name}.bn2", y))
    y = net.conv(f"{name}.conv2", y, channels, 3, stride=stride, padding=1)
    y = net.elementwise(f"{name}.relu3", net.batch_norm(f"{name}.bn3", y))
    y = net.conv(f"{name}.conv3", y, channels * _RESNET_EXPANSION, 1)
    if project:
        x = net.conv(f"{name}.shortcut", first, channels * _RESNET_EXPANSION, 1, stride=stride)
    return net.add(f"{name}.add", y, x)


def resnet50_v15() -> Architecture:
    """He et al. 2015 with the stride in the 3 x 3 convolution; torchvision's form, 161 gradients."""
    net = Architecture(unit="images")
    x = net.conv("conv1", net.data(3, 224, 224), 64, 7, stride=2, padding=3)
    x = net.elementwise("relu", net.batch_norm("bn1", x))
    x = net.max_pool("maxpool", x, 3, stride=2, padding=1)
    for stage, (units, channels) in enumerate(_RESNET_STAGES, start=1):
        for unit in range(units):
            stride = 2 if stage > 1 and unit == 0 else 1
            x = _postactivation_unit(net, f"layer{stage}.{unit}", x, channels, stride, project=unit == 0)
    return _classify(net, x)


def _postactivation_unit(
    net: Architecture, name: str, x: Value, channels: int, stride: int, *, project: bool
) -> Value:
    y = net.batch_norm(f"{name}.bn1", net.conv(f"{name}.conv1", x, channels, 1))
    y = net.elementwise(f"{name}.relu1", y)
    y = net.conv(f"{name}.conv2", y, channels, 3, stride=stride, padding=1)
    y = net.elementwise(f"{name}.relu2", net.batch_norm(f"{name}.bn2", y))
    y = net.batch_norm(f"{name}.bn3", net.conv(f"{name}.conv3", y, channels * _RESNET_EXPANSION, 1))
    if project:
        x = net.conv(f"{name}.downsample.0", x, channels * _RESNET_EXPANSION, 1, stride=stride)
        x = net.batch_norm(f"{name}.downsample.1", x)
    return net.elementwise(f"{name}.relu3", net.add(f"{name}.add", y, x))


def _classify(net: Architecture, x: Value) -> Architecture:
    x = net.avg_pool("avgpool", x, x.shape[1])
    x = net.view("flatten", x, x.size)
    net.softmax_loss("loss", net.linear("fc", x, 1000))
    return net


def inception_v3() -> Architecture:
    """94 convolutions, each normalized, in branches that join by concatenation; torchvision's form.

    Szegedy et al. 2016, for 299 x 299 images, without the auxiliary head.
    """
    net = Architecture(unit="images")
    x = _normalized_conv(net, "conv1", net.data(3, 299, 299), 32, 3, stride=2)
    x = _normalized_conv(net, "conv2", x, 32, 3)
    x = _normalized_conv(net, "conv3", x, 64, 3, padding=1)
    x = net.max_pool("pool1", x, 3, stride=2)
    x = _normalized_conv(net, "conv4", x, 80, 1)
    x = _normalized_conv(net, "conv5", x, 192, 3)
    x = net.max_pool("pool2", x, 3, stride=2)
    for name, pool_channels in (("mixed5b", 32), ("mixed5c", 64), ("mixed5d", 64)):
        x = _inception_block_a(net, name, x, pool_channels)
    x = _inception_block_b(net, "mixed6a", x)
    for name, channels in (("mixed6b", 128), ("mixed6c", 160), ("mixed6d", 160), ("mixed6e", 192)):
        x = _inception_block_c(net, name, x, channels)
    x = _inception_block_d(net, "mixed7a", x)
    for name in ("mixed7b", "mixed7c"):
        x = _inception_block_e(net, name, x)
    x = net.avg_pool("avgpool", x, 8)
    x = net.view("flatten", net.dropout("dropout", x), x.size)
    net.softmax_loss("loss", net.linear("fc", x, 1000))
    return net


def _normalized_conv(
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
    return _normalized_conv(net, name, x, channels, (1, taps), padding=(0, taps // 2))


def _column(net: Architecture, name: str, x: Value, channels: int, taps: int) -> Value:
    return _normalized_conv(net, name, x, channels, (taps, 1), padding=(taps // 2, 0))


def _pooled(net: Architecture, name: str, x: Value, channels: int) -> Value:
    return _normalized_conv(
        net, f"{name}.pool_1x1", net.avg_pool(f"{name}.pool", x, 3, padding=1), channels, 1
    )


def _inception_block_a(net: Architecture, name: str, x: Value, pool_channels: int) -> Value:
    one = _normalized_conv(net, f"{name}.1x1", x, 64, 1)
    five = _normalized_conv(net, f"{name}.5x5_1", x, 48, 1)
    five = _normalized_conv(net, f"{name}.5x5_2", five, 64, 5, padding=2)
    three = _normalized_conv(net, f"{name}.3x3_1", x, 64, 1)
    three = _normalized_conv(net, f"{name}.3x3_2", three, 96, 3, padding=1)
    three = _normalized_conv(net, f"{name}.3x3_3", three, 96, 3, padding=1)
    return net.concat(f"{name}.concat", one, five, three, _pooled(net, name, x, pool_channels))


def _inception_block_b(net: Architecture, name: str, x: Value) -> Value:
    three = _normalized_conv(net, f"{name}.3x3", x, 384, 3, stride=2)
    double = _normalized_conv(net, f"{name}.double_1", x, 64, 1)
    double = _normalized_conv(net, f"{name}.double_2", double, 96, 3, padding=1)
    double = _normalized_conv(net, f"{name}.double_3", double, 96, 3, stride=2)
    return net.concat(f"{name}.concat", three, double, net.max_pool(f"{name}.pool", x, 3, stride=2))


def _inception_block_c(net: Architecture, name: str, x: Value, channels: int) -> Value:
    one = _normalized_conv(net, f"{name}.1x1", x, 192, 1)
    seven = _normalized_conv(net, f"{name}.7x7_1", x, channels, 1)
    seven = _row(net, f"{name}.7x7_2", seven, channels, 7)
    seven = _column(net, f"{name}.7x7_3", seven, 192, 7)
    double = _normalized_conv(net, f"{name}.double_1", x, channels, 1)
    double = _column(net, f"{name}.double_2", double, channels, 7)
    double = _row(net, f"{name}.double_3", double, channels, 7)
    double = _column(net, f"{name}.double_4", double, channels, 7)
    double = _row(net, f"{name}.double_5", double, 192, 7)
    return net.concat(f"{name}.concat", one, seven, double, _pooled(net, name, x, 192))


def _inception_block_d(net: Architecture, name: str, x: Value) -> Value:
    three = _normalized_conv(net, f"{name}.3x3_1", x, 192, 1)
    three = _normalized_conv(net, f"{name}.3x3_2", three, 320, 3, stride=2)
    seven = _normalized_conv(net, f"{name}.7x7_1", x, 192, 1)
    seven = _row(net, f"{name}.7x7_2", seven, 192, 7)
    seven = _column(net, f"{name}.7x7_3", seven, 192, 7)
    seven = _normalized_conv(net, f"{name}.7x7_4", seven, 192, 3, stride=2)
    return net.concat(f"{name}.concat", three, seven, net.max_pool(f"{name}.pool", x, 3, stride=2))


def _inception_block_e(net: Architecture, name: str, x: Value) -> Value:
    one = _normalized_conv(net, f"{name}.1x1", x, 320, 1)
    three = _normalized_conv(net, f"{name}.3x3_1", x, 384, 1)
    three_row = _row(net, f"{name}.3x3_2a", three, 384, 3)
    three_column = _column(net, f"{name}.3x3_2b", three, 384, 3)
    double = _normalized_conv(net, f"{name}.double_1", x, 448, 1)
    double = _normalized_conv(net, f"{name}.double_2", double, 384, 3, padding=1)
    double_row = _row(net, f"{name}.double_3a", double, 384, 3)
    double_column = _column(net, f"{name}.double_3b", double, 384, 3)
    pooled = _pooled(net, name, x, 192)
    return net.concat(f"{name}.concat", one, three_row, three_column, double_row, double_column, pooled)
