"""What commands share: options, tables, errors on stderr and exit codes."""
