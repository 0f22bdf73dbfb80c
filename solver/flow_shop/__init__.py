"""Two links in a row: what is pushed to a server is then pulled from it. Orders, bounds and worked times."""
