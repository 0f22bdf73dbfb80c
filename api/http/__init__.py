"""The HTTP interface: the application, its routes, security, and errors as problem documents."""
