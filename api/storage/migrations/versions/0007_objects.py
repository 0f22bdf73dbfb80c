"""Large documents may be in object storage: rows name them, and what no row names is marked."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None

_TABLES = ("profiles", "solutions", "predictions", "fabric_runs")


def upgrade() -> None:
    """Go to this revision. Everything new may be missing: the version before goes on working."""
    for table in _TABLES:
        op.add_column(table, sa.Column("object_key", sa.String(length=100), nullable=True))
        op.add_column(table, sa.Column("object_bytes", sa.BigInteger(), nullable=True))
        op.create_index(f"ix_{table}_object", table, ["object_key"], unique=False)
    op.create_table(
        "orphans",
        sa.Column("object_key", sa.String(length=100), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("object_key"),
    )
    op.create_table(
        "object_owners",
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("place"),
    )


def downgrade() -> None:
    """Go back to the one before; what is in object storage can no longer be found and is deleted here."""
    op.drop_table("object_owners")
    op.drop_table("orphans")
    for table in _TABLES:
        op.execute(f"DELETE FROM {table} WHERE object_key IS NOT NULL")
        op.drop_index(f"ix_{table}_object", table_name=table)
        op.drop_column(table, "object_bytes")
        op.drop_column(table, "object_key")
    op.execute("UPDATE schema_floor SET revision = '0006'")
