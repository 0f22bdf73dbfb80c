"""Run by alembic for every command: uses the connection, and the transaction, that it is given."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
