"""Training loops of frameworks on the testbed: the replay in their Trainer, under their DDP or under PACE."""
