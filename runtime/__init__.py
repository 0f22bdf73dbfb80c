"""The runtime: optimizer wrappers that make a training job follow a schedule. Needs ``pace[torch]``."""
