"""An independent judge of transfer plans: shares no code with the solver."""
