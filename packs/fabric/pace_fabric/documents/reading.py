"""Reading the fabric's documents from JSON: faults are named, line by line."""

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from pace.documents.base import Document, faults, read_file
from pace_fabric.documents.batch import UpdateBatch
from pace_fabric.documents.network import FabricNetwork
from pace_fabric.documents.transfer_plan import TransferPlan
from pace_fabric.errors import InvalidFabric

AnyDocument = TypeVar("AnyDocument", bound=Document)


def parse_document(kind: type[AnyDocument], document: bytes | str) -> AnyDocument:
    """Read a document of one kind; raises InvalidFabric with one line per fault."""
    try:
        return kind.model_validate_json(document, strict=True)
    except ValidationError as error:
        raise InvalidFabric(faults(kind, document, error)) from None


def load_document(kind: type[AnyDocument], path: str | Path) -> AnyDocument:
    """Read a document of one kind from a file; raises InvalidFabric and OSError."""
    document = read_file(path, InvalidFabric)
    try:
        return parse_document(kind, document)
    except InvalidFabric as error:
        raise InvalidFabric(f"{path}: {error}") from None


def load_network(path: str | Path) -> FabricNetwork:
    """Read a network; raises InvalidFabric and OSError."""
    return load_document(FabricNetwork, path)


def load_batch(path: str | Path) -> UpdateBatch:
    """Read a batch of updates; raises InvalidFabric and OSError."""
    return load_document(UpdateBatch, path)


def load_transfer_plan(path: str | Path) -> TransferPlan:
    """Read a transfer plan; raises InvalidFabric and OSError."""
    return load_document(TransferPlan, path)
