"""The wire between our own processes: addresses, frames, streams with or without TLS, and greetings."""
