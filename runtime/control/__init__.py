"""Control: which plan runs in which mode, agreed by all ranks, and when to look for a better one."""
