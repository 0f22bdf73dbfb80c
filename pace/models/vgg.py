"""VGG16 and VGG19 (Simonyan and Zisserman 2015, configurations D and E), 224 x 224 images, 1000 classes."""

from pace.models.layers import Architecture

# Channels of a block's convolutions.
_CHANNELS = (64, 128, 256, 512, 512)


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
    for block, (count, channels) in enumerate(zip(convolutions, _CHANNELS, strict=True), start=1):
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
