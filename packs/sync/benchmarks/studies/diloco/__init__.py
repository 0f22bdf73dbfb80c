"""Streaming DiLoCo over shaped links: predicted and measured utilization, by a plan and by torchft's rule."""
