"""Tasks can be listed and know their request; keys end and tell when they were last used."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. Everything new may be missing: the version before goes on working."""
    op.add_column("tasks", sa.Column("request_id", sa.String(length=100), nullable=True))
    op.create_index("ix_tasks_page", "tasks", ["tenant", "created_at", "id"], unique=False)
    op.add_column("api_keys", sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("api_keys", sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True))


def downgrade() -> None:
    """Go back to the one before; keys that would have ended work without end."""
    op.drop_column("api_keys", "last_used_at")
    op.drop_column("api_keys", "expires_at")
    op.drop_index("ix_tasks_page", table_name="tasks")
    op.drop_column("tasks", "request_id")
