"""VGG16 (Simonyan and Zisserman 2015, configuration D) for 224 x 224 images and 1000 classes."""

from pace.models.layers import Architecture

_CHANNELS = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def vgg16() -> Architecture:
    """13 convolutions and 3 linear layers with biases: 32 gradients, 138.4 million parameters."""
    net = Architecture(unit="images")
    x = net.data(3, 224, 224)
    for block, channels in enumerate(_CHANNELS, start=1):
        for layer, count in enumerate(channels, start=1):
            x = net.conv(f"conv{block}_{layer}", x, count, 3, padding=1, bias=True)
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
