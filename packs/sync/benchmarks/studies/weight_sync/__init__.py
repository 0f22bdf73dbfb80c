"""New weights to rollout engines: the pause by a plan, and by torch broadcasts."""
