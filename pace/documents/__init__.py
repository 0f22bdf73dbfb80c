"""The documents that files, the command line, the service and the runtime share."""
