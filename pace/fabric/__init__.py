"""World 3: transfers of many workers' updates over links of unequal and changing speed."""

from pace.fabric.plan import plan_transfers

__all__ = ["plan_transfers"]
