"""Simulated runs over a fabric, with their scenarios."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "fabric_runs",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("scenario_sha256", sa.String(length=64), nullable=False),
        sa.Column("num_policies", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_fabric_runs_key", "fabric_runs", ["tenant", "key"], unique=False)
    op.create_index("ix_fabric_runs_page", "fabric_runs", ["tenant", "created_at", "id"], unique=False)


def downgrade() -> None:
    """Go back to the one before; runs and tasks that make some are lost."""
    op.execute("DELETE FROM tasks WHERE kind = 'fabric-run'")
    op.execute(
        "DELETE FROM solutions WHERE EXISTS (SELECT 1 FROM fabric_runs "
        "WHERE fabric_runs.tenant = solutions.tenant AND fabric_runs.key = solutions.key)"
    )
    op.drop_index("ix_fabric_runs_page", table_name="fabric_runs")
    op.drop_index("ix_fabric_runs_key", table_name="fabric_runs")
    op.drop_table("fabric_runs")
