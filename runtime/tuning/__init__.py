"""Tuning: searching for a plan while the job trains, by timing what it might do."""
