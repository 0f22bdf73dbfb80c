"""What the runtime puts into torch itself: see ``places``."""
