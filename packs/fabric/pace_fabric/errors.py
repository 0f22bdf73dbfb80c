"""What is wrong with a document of a fabric."""

from pace.errors import InvalidDocument


class InvalidFabric(InvalidDocument):
    """A network, batch of updates, transfer plan or scenario that is not valid; the message says where."""

    kind = "network, the batch or the scenario"
