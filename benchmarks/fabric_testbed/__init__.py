"""Asynchronous training over shaped links that change: the fabric beside a plain server, a ring and a tree."""
