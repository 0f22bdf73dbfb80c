"""Whether a job's collectives can hang: what each rank enqueues, and the proof that all of it ends."""
