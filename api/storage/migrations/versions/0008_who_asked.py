"""Schedules say who asked for them last."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision. What is new may be missing: the version before goes on working."""
    op.add_column("schedules", sa.Column("asked_by", sa.String(length=200), nullable=True))


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_column("schedules", "asked_by")
