"""Schedules for jobs that keep their framework's own communication: what to pass to DDP and to Horovod."""

from pace.documents.schedule import Schedule

MIB = 1 << 20


def bucket_cap_mb_list(schedule: Schedule) -> list[float]:
    """Return ``bucket_cap_mb_list`` for PyTorch's DistributedDataParallel: the groups' sizes in MiB.

    DDP closes a bucket as soon as it reaches its cap, in the order in which gradients became ready, so
    these caps give it the schedule's groups. Groups without bytes are left out.
    """
    return [group.size_bytes / MIB for group in schedule.groups if group.size_bytes]


def horovod_groups(schedule: Schedule) -> list[list[str]]:
    """Return the names for ``groups=`` of Horovod's DistributedOptimizer, to be replaced by the parameters.

    Horovod keeps groups apart only with HOROVOD_DISABLE_GROUP_FUSION=1 and a fusion threshold no smaller
    than the largest group.
    """
    return [list(group.tensors) for group in schedule.groups]
