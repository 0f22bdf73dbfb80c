"""The engine: sends the segments of a plan in order, from the buffers that hold the gradients."""
