"""The wire between processes of our own: addresses, frames, streams with and without TLS, and how ends greet."""
