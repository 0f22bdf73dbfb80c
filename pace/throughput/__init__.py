"""Throughput of asynchronous training with parameter servers, predicted from one worker's recorded steps."""
