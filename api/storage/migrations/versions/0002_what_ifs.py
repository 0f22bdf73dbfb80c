"""What-ifs; tasks of several kinds that can be watched and cancelled."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "what_ifs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("profile_sha256", sa.String(length=64), nullable=False),
        sa.Column("num_cells", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_what_ifs_key", "what_ifs", ["tenant", "key"], unique=False)
    op.create_index("ix_what_ifs_page", "what_ifs", ["tenant", "created_at", "id"], unique=False)
    op.add_column("tasks", sa.Column("kind", sa.String(length=10), server_default="schedule", nullable=False))
    op.add_column("tasks", sa.Column("num_done", sa.Integer(), nullable=True))
    op.add_column("tasks", sa.Column("num_total", sa.Integer(), nullable=True))
    # Not in a batch, which would copy the table and its partial index: both databases can rename.
    op.execute("ALTER TABLE tasks RENAME COLUMN schedule_id TO result_id")


def downgrade() -> None:
    """Go back to the one before; what-ifs and tasks that make some are lost."""
    op.execute("DELETE FROM tasks WHERE kind <> 'schedule' OR state = 'cancelled'")
    op.execute(
        "DELETE FROM solutions WHERE NOT EXISTS (SELECT 1 FROM schedules "
        "WHERE schedules.tenant = solutions.tenant AND schedules.key = solutions.key)"
    )
    op.execute("ALTER TABLE tasks RENAME COLUMN result_id TO schedule_id")
    op.drop_column("tasks", "num_total")
    op.drop_column("tasks", "num_done")
    op.drop_column("tasks", "kind")
    op.drop_index("ix_what_ifs_page", table_name="what_ifs")
    op.drop_index("ix_what_ifs_key", table_name="what_ifs")
    op.drop_table("what_ifs")
