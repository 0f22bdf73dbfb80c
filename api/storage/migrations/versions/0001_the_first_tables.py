"""The first tables."""

import secrets

import sqlalchemy as sa
from alembic import op
from sqlalchemy.schema import CreateSequence

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go to this revision."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute(CreateSequence(sa.Sequence("arrivals")))
    in_storage, live = sa.text("object_key IS NOT NULL"), sa.text("state IN ('queued', 'running')")
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=16), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("scopes", sa.String(length=100), nullable=False),
        sa.Column("secret_sha256", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_api_keys_number", "api_keys", ["number"])
    cursor_secret = op.create_table(
        "cursor_secret",
        sa.Column("secret", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("secret"),
    )
    op.bulk_insert(cursor_secret, [{"secret": secrets.token_bytes(32)}])
    op.create_table(
        "object_owners",
        sa.Column("place", sa.Text(), nullable=False),
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.PrimaryKeyConstraint("place"),
    )
    op.create_table(
        "orphans",
        sa.Column("object_key", sa.String(length=100), nullable=False),
        sa.Column("found_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("object_key"),
    )
    op.create_table(
        "profiles",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("sha256", sa.String(length=64), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("num_ops", sa.Integer(), nullable=False),
        sa.Column("num_gradients", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("object_key", sa.String(length=100), nullable=True),
        sa.Column("object_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "sha256"),
    )
    op.create_index("ix_profiles_number", "profiles", ["number"])
    op.create_index("ix_profiles_object", "profiles", ["object_key"])
    op.create_table(
        "questions",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("input_sha256", sa.String(length=64), nullable=False),
        sa.Column("input_name", sa.Text(), nullable=True),
        sa.Column("num_steps", sa.Integer(), nullable=True),
        sa.Column("job", sa.String(length=200), nullable=True),
        sa.Column("fingerprint", sa.String(length=64), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("asked_by", sa.String(length=200), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("asked_number", sa.BigInteger(), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("object_key", sa.String(length=100), nullable=True),
        sa.Column("object_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_questions_asked_number", "questions", ["asked_number"])
    op.create_index("ix_questions_number", "questions", ["number"])
    op.create_index("ix_questions_key", "questions", ["tenant", "key"])
    op.create_index("ix_questions_newest", "questions", ["tenant", "job", "fingerprint", "asked_number"])
    op.create_index(
        "ix_questions_object",
        "questions",
        ["object_key"],
        sqlite_where=in_storage,
        postgresql_where=in_storage,
    )
    op.create_index("ix_questions_page", "questions", ["tenant", "kind", "number"])
    op.create_table(
        "reports",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("job", sa.String(length=200), nullable=False),
        sa.Column("fingerprint", sa.String(length=64), nullable=False),
        sa.Column("profile_sha256", sa.String(length=64), nullable=False),
        sa.Column("predicted_iteration_s", sa.Double(), nullable=False),
        sa.Column("measured_iteration_s", sa.Double(), nullable=False),
        sa.Column("plain_iteration_s", sa.Double(), nullable=True),
        sa.Column("num_iterations", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_reports_number", "reports", ["number"])
    op.create_index("ix_reports_job", "reports", ["tenant", "job", "number"])
    op.create_table(
        "solutions",
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("object_key", sa.String(length=100), nullable=True),
        sa.Column("object_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("tenant", "key"),
    )
    op.create_index("ix_solutions_object", "solutions", ["object_key"])
    op.create_table(
        "tasks",
        sa.Column("id", sa.String(length=32), nullable=False),
        sa.Column("kind", sa.String(length=10), nullable=False),
        sa.Column("tenant", sa.String(length=100), nullable=False),
        sa.Column("key", sa.String(length=64), nullable=False),
        sa.Column("result_id", sa.String(length=32), nullable=False),
        sa.Column("options", sa.Text(), nullable=False),
        sa.Column("state", sa.String(length=10), nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("num_done", sa.Integer(), nullable=True),
        sa.Column("num_total", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("lease_owner", sa.String(length=64), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("request_id", sa.String(length=100), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_tasks_number", "tasks", ["number"])
    op.create_index("ix_tasks_page", "tasks", ["tenant", "number"])
    op.create_index("ix_tasks_state", "tasks", ["state", "number"])
    op.create_index("ix_tasks_turns", "tasks", ["tenant", "started_at"])
    op.create_index(
        "ux_tasks_live_key", "tasks", ["tenant", "key"], unique=True, sqlite_where=live, postgresql_where=live
    )
