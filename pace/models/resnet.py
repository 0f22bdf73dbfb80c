"""ResNet-50 for 224 x 224 images and 1000 classes, in two forms that frameworks ship."""

from pace.models.layers import Architecture, Value

_STAGES = ((3, 64), (4, 128), (6, 256), (3, 512))
_EXPANSION = 4


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
    for stage, (units, channels) in enumerate(_STAGES, start=1):
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
    y = net.conv(f"{name}.conv3", y, channels * _EXPANSION, 1)
    if project:
        x = net.conv(f"{name}.shortcut", first, channels * _EXPANSION, 1, stride=stride)
    return net.add(f"{name}.add", y, x)


def resnet50_v15() -> Architecture:
    """He et al. 2015 with the stride in the 3 x 3 convolution; torchvision's form, 161 gradients."""
    net = Architecture(unit="images")
    x = net.conv("conv1", net.data(3, 224, 224), 64, 7, stride=2, padding=3)
    x = net.elementwise("relu", net.batch_norm("bn1", x))
    x = net.max_pool("maxpool", x, 3, stride=2, padding=1)
    for stage, (units, channels) in enumerate(_STAGES, start=1):
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
    y = net.batch_norm(f"{name}.bn3", net.conv(f"{name}.conv3", y, channels * _EXPANSION, 1))
    if project:
        x = net.conv(f"{name}.downsample.0", x, channels * _EXPANSION, 1, stride=stride)
        x = net.batch_norm(f"{name}.downsample.1", x)
    return net.elementwise(f"{name}.relu3", net.add(f"{name}.add", y, x))


def _classify(net: Architecture, x: Value) -> Architecture:
    x = net.avg_pool("avgpool", x, x.shape[1])
    x = net.view("flatten", x, x.size)
    net.softmax_loss("loss", net.linear("fc", x, 1000))
    return net
