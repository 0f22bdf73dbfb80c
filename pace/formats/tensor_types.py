"""Element types and shapes as profilers and execution traces write them."""

from pace.documents.profile import ELEMENT_BYTES, DType

# The names that profilers and execution traces give to element types.
DTYPES: dict[str, DType] = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "c10::half": "float16",
    "bfloat16": "bfloat16",
    "c10::bfloat16": "bfloat16",
    "long": "int64",
    "long int": "int64",
    "int": "int32",
    "short": "int16",
    "short int": "int16",
    "char": "int8",
    "signed char": "int8",
    "byte": "uint8",
    "unsigned char": "uint8",
    "bool": "bool",
    **{name: name for name in ELEMENT_BYTES},
}

MOST_ELEMENTS = 2**56  # so that their bytes stay below the limit of documents


def elements_of(shape: object) -> int | None:
    """Return the number of elements of a shape, or None if it is no list of sizes."""
    if not isinstance(shape, list):
        return None
    elements = 1
    for size in shape:
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return None
        elements *= size
    return elements if elements < MOST_ELEMENTS else None
