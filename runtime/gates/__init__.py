"""Gates: notice when a training loop uses a parameter, a gradient or an optimizer's parameter groups."""
