"""The fabric at run time: a scheduler, a daemon on every host, and what workers call."""
