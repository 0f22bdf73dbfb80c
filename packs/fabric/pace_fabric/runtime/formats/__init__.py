"""Numbers of updates and models in fewer bytes than float32, and what is lost by that fed back."""
