"""Predictions of throughput over HTTP: the question, its documents, its client, and a view of the page."""
