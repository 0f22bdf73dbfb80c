"""What other tools write, read as profiles and all-reduce costs; and profiles written as JSON."""
