"""What is wrong with a document of weight sync or of streaming DiLoCo."""

from pace.errors import InvalidDocument


class InvalidSync(InvalidDocument):
    """A document or plan of weight sync or streaming DiLoCo that is not valid; the message says why."""

    kind = "weight-sync, resharding, delta-sync or outer-sync document"
