"""AlexNet (Krizhevsky 2014, one tower) for 224 x 224 images and 1000 classes."""

from pace.models.layers import Architecture

# Channels, kernel, stride, padding, and whether a pooling layer follows.
_CONVOLUTIONS = (
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
    for layer, (channels, kernel, stride, padding, pooled) in enumerate(_CONVOLUTIONS, start=1):
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
