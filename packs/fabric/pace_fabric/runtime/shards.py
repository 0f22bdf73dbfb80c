"""A model that is split over several servers: which numbers each holds, and keys of parts."""


def shard_range(numbers: int, shard: int, shards: int) -> tuple[int, int]:
    """Return the first number of a shard, and the first of the next one."""
    return shard * numbers // shards, (shard + 1) * numbers // shards


def shard_bytes(size_bytes: int, shard: int, shards: int) -> int:
    """Return how large a shard of so many bytes of float32 is."""
    first, last = shard_range(size_bytes // 4, shard, shards)
    return size_bytes if shards == 1 else 4 * (last - first)


def shard_key(key: str, shard: int, shards: int) -> str:
    """Return the key of a shard of what is kept as `key`; the same where there is one."""
    return key if shards == 1 else f"{key}#{shard}/{shards}"


def whole_of(key: str) -> tuple[str, int, int] | None:
    """Return the key of the whole, the shard and the number of shards; None for no shard's key."""
    whole, mark, place = key.rpartition("#")
    shard, slash, shards = place.partition("/")
    if not mark or not slash or not shard.isdigit() or not shards.isdigit():
        return None
    return whole, int(shard), int(shards)
