"""Run by alembic for every command: uses the connection, and the transaction, that it is given."""

from alembic import context

from pace.api.storage.records import Record

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Record.metadata,
    render_as_batch=True,
)
context.run_migrations()
