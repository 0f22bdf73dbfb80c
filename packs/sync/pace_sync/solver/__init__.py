"""Buckets that several receivers work on, shares of senders, and fragments of streaming DiLoCo."""
