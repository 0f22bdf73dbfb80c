"""Which versions may use this database: two of them run side by side while a service is updated."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    table = op.create_table(
        "schema_floor",
        sa.Column("revision", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("revision"),
    )
    op.bulk_insert(table, [{"revision": "0006"}])


def downgrade() -> None:
    """Go back to the one before."""
    op.drop_table("schema_floor")
