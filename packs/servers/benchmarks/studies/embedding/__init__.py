"""Embedding tables on a server: PACE's, the one of torch's RPC tutorial, and TensorFlow's."""
