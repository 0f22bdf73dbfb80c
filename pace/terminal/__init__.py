"""What commands have in common: arguments of one meaning, tables, errors on stderr and exit codes."""
