"""What a schedule is made for: the tensors to be all-reduced and the number of workers."""

import hashlib
import json
from collections.abc import Iterable


def fingerprint(gradients: Iterable[tuple[str, int, str]], workers: int) -> str:
    """SHA-256 over the sorted (name, size_bytes, dtype) of all gradients and the number of workers.

    The service finds a job's newest schedule by it, and the runtime refuses a schedule whose
    fingerprint is not its model's.

    Returns
    -------
    str
        64 lower-case hexadecimal digits.
    """
    document = {
        "gradients": sorted([name, size, dtype] for name, size, dtype in gradients),
        "workers": workers,
    }
    return hashlib.sha256(json.dumps(document, separators=(",", ":"), sort_keys=True).encode()).hexdigest()
