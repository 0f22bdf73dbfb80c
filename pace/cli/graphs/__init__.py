"""What commands do with graphs of sharded training instead of profiles."""
