"""Control: all ranks agree on a plan and a mode, and look for better ones during training."""
