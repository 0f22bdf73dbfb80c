"""Proves that a job's collectives cannot hang, or shows which ranks wait for one another."""
