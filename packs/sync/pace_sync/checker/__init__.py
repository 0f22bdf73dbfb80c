"""The independent judge of sync plans: it shares no code with the planners."""
