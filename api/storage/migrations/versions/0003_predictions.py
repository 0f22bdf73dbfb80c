"""Predictions of throughput, with the steps that they are made from."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    op.create_table(
        "predictions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("steps_sha256", sa.String(length=64), nullable=False),
        sa.Column("num_points", sa.Integer(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_predictions_key", "predictions", ["tenant", "key"], unique=False)
    op.create_index("ix_predictions_page", "predictions", ["tenant", "created_at", "id"], unique=False)


def downgrade() -> None:
    """Go back to the one before; predictions and tasks that make some are lost."""
    op.execute("DELETE FROM tasks WHERE kind = 'prediction'")
    op.execute(
        "DELETE FROM solutions WHERE EXISTS (SELECT 1 FROM predictions "
        "WHERE predictions.tenant = solutions.tenant AND predictions.key = solutions.key)"
    )
    op.drop_index("ix_predictions_page", table_name="predictions")
    op.drop_index("ix_predictions_key", table_name="predictions")
    op.drop_table("predictions")
