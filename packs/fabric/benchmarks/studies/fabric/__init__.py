"""Asynchronous training over shaped links that change: the fabric and three others."""
