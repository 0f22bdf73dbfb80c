"""A schedule's groups as settings of DDP and Horovod, for jobs that keep their own communication."""

from pace.documents.schedule import Schedule

MIB = 1 << 20


def bucket_cap_mb_list(schedule: Schedule) -> list[float]:
    """Return ``bucket_cap_mb_list`` for PyTorch's DistributedDataParallel: the groups' sizes in MiB.

    DDP fills buckets in the order in which gradients become ready, and closes each when it reaches its cap.
    So with these caps its buckets are the schedule's groups. Groups without bytes are left out.
    """
    return [group.size_bytes / MIB for group in schedule.groups if group.size_bytes]


def horovod_groups(schedule: Schedule) -> list[list[str]]:
    """Return the gradients' names for ``groups=`` of Horovod's DistributedOptimizer.

    Replace each name by its parameter. Horovod keeps groups apart only with HOROVOD_DISABLE_GROUP_FUSION=1
    and a fusion threshold that is at least the size of the largest group.
    """
    return [list(group.tensors) for group in schedule.groups]
