"""One table of what was asked, of all kinds.

Nothing is dropped: the version before goes on working in its four tables, and triggers bring what either
version writes to the other. They, these tables and ``tasks.profile_sha256`` are dropped one release later.
"""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

# What the version before has for columns of the new table; a name in quotes is a value.
_SAME = {"id": "id", "tenant": "tenant", "key": "key", "created_at": "created_at", "asked_at": "asked_at"}
_DOCUMENT = {"document": "document", "object_key": "object_key", "object_bytes": "object_bytes"}
_OLD = {
    "schedules": _SAME
    | {"kind": "'schedule'", "input_sha256": "profile_sha256"}
    | {name: name for name in ("job", "fingerprint", "asked_by")},
    "what_ifs": _SAME | {"kind": "'what-if'", "input_sha256": "profile_sha256", "num_steps": "num_cells"},
    "predictions": _SAME
    | _DOCUMENT
    | {
        "kind": "'prediction'",
        "input_name": "name",
        "input_sha256": "steps_sha256",
        "num_steps": "num_points",
    },
    "fabric_runs": _SAME
    | _DOCUMENT
    | {
        "kind": "'fabric-run'",
        "input_name": "name",
        "input_sha256": "scenario_sha256",
        "num_steps": "num_policies",
    },
}
_EVENTS = ("insert", "update", "delete")


def upgrade() -> None:
    """Go to this revision."""
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
        sa.Column("document", sa.LargeBinary(), nullable=False),
        sa.Column("object_key", sa.String(length=100), nullable=True),
        sa.Column("object_bytes", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_questions_newest", "questions", ["tenant", "job", "fingerprint", "asked_at"])
    op.create_index("ix_questions_key", "questions", ["tenant", "key"])
    op.create_index("ix_questions_page", "questions", ["tenant", "kind", "created_at", "id"])
    in_storage = sa.text("object_key IS NOT NULL")
    op.create_index(
        "ix_questions_object",
        "questions",
        ["object_key"],
        sqlite_where=in_storage,
        postgresql_where=in_storage,
    )
    sqlite = op.get_bind().dialect.name == "sqlite"
    if not sqlite:
        # Who asks the same of both versions at once waits here, not with half of it done.
        _add_trigger("questions", "ask", "BEFORE INSERT", "PERFORM pg_advisory_xact_lock(hashtext(NEW.id));")
    for table, columns in _OLD.items():
        names, values = _pairs(columns)
        op.execute(f"INSERT INTO questions ({names}) SELECT {values} FROM {table}")
        if not sqlite:
            _add_trigger(table, "ask", "BEFORE INSERT", "PERFORM pg_advisory_xact_lock(hashtext(NEW.id));")
        for event, statement in zip(_EVENTS, _to_questions(table), strict=True):
            _add_trigger(table, event, f"AFTER {event.upper()}", statement)
        for event, statement in zip(_EVENTS, _from_questions(table), strict=True):
            row = "OLD" if event == "delete" else "NEW"
            of_kind = f"WHEN ({row}.kind = {columns['kind']})"
            _add_trigger("questions", f"{event}_{table}", f"AFTER {event.upper()}", statement, of_kind)


def downgrade() -> None:
    """Go back to the one before; answers to questions of kinds that it does not know are lost."""
    if op.get_bind().dialect.name == "sqlite":
        for table in _OLD:
            for event in _EVENTS:
                op.execute(f"DROP TRIGGER {table}_{event}")
    else:
        # Functions take their triggers along; those of the new table go with it.
        for table in _OLD:
            for event in ("ask", *_EVENTS):
                op.execute(f"DROP FUNCTION {table}_{event} CASCADE")
    known = ", ".join(columns["kind"] for columns in _OLD.values())
    op.execute(f"DELETE FROM tasks WHERE kind NOT IN ({known})")
    op.execute(
        f"DELETE FROM solutions WHERE EXISTS (SELECT 1 FROM questions WHERE kind NOT IN ({known})"
        " AND questions.tenant = solutions.tenant AND questions.key = solutions.key)"
    )
    op.drop_table("questions")
    if op.get_bind().dialect.name != "sqlite":
        op.execute("DROP FUNCTION questions_ask")
        for table in _OLD:
            for event in _EVENTS:
                op.execute(f"DROP FUNCTION questions_{event}_{table}")


def _pairs(columns: dict[str, str], row: str = "") -> tuple[str, str]:
    """Return the names of the new table's columns, and what they are made of, of a row."""
    made = {name: value if value.startswith("'") else row + value for name, value in columns.items()}
    if "document" not in made:
        made["document"] = "X''" if op.get_bind().dialect.name == "sqlite" else "''::bytea"
    return ", ".join(made), ", ".join(made.values())


def _to_questions(table: str) -> tuple[str, str, str]:
    names, values = _pairs(_OLD[table], "NEW.")
    changed = [name for name in ("asked_at", "asked_by") if name in _OLD[table]]
    changes = ", ".join(f"{name} = NEW.{name}" for name in changed)
    differ = " OR ".join(f"{name} IS DISTINCT FROM NEW.{name}" for name in changed)
    return (
        f"INSERT INTO questions ({names}) SELECT {values}"
        " WHERE NOT EXISTS (SELECT 1 FROM questions WHERE id = NEW.id);",
        f"UPDATE questions SET {changes} WHERE id = NEW.id AND ({differ});",
        "DELETE FROM questions WHERE id = OLD.id;",
    )


def _from_questions(table: str) -> tuple[str, str, str]:
    stored = {name: value for name, value in _OLD[table].items() if name != "kind"}
    changed = [name for name in ("asked_at", "asked_by") if name in stored]
    changes = ", ".join(f"{name} = NEW.{name}" for name in changed)
    differ = " OR ".join(f"{name} IS DISTINCT FROM NEW.{name}" for name in changed)
    return (
        f"INSERT INTO {table} ({', '.join(stored.values())}) SELECT NEW.{', NEW.'.join(stored)}"
        f" WHERE NOT EXISTS (SELECT 1 FROM {table} WHERE id = NEW.id);",
        f"UPDATE {table} SET {changes} WHERE id = NEW.id AND ({differ});",
        f"DELETE FROM {table} WHERE id = OLD.id;",
    )


def _add_trigger(table: str, name: str, when: str, statement: str, condition: str = "") -> None:
    name = f"{table}_{name}"
    if op.get_bind().dialect.name == "sqlite":
        op.execute(f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW {condition} BEGIN {statement} END")
        return
    row = "OLD" if "DELETE" in when else "NEW"
    op.execute(
        f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN {statement} RETURN {row}; END $$"
    )
    op.execute(f"CREATE TRIGGER {name} {when} ON {table} FOR EACH ROW {condition} EXECUTE FUNCTION {name}()")
