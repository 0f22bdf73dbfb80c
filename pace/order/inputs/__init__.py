"""Job programs from files: documents, schedules, graphs, traces, and dumps of the flight recorder."""
