"""Entries can be added at the end of the chain and never changed or removed, whoever asks the database."""

from django.db import migrations

MESSAGE = "audit entries are append-only"

SQLITE = [
    f"""CREATE TRIGGER audit_entry_update BEFORE UPDATE ON audit_entry
        BEGIN SELECT RAISE(ABORT, '{MESSAGE}: UPDATE refused'); END""",
    f"""CREATE TRIGGER audit_entry_delete BEFORE DELETE ON audit_entry
        BEGIN SELECT RAISE(ABORT, '{MESSAGE}: DELETE refused'); END""",
    # INSERT OR REPLACE would delete without asking the trigger above, so an insert must be the next in the chain.
    f"""CREATE TRIGGER audit_entry_insert BEFORE INSERT ON audit_entry
        WHEN NEW.seq IS NOT COALESCE((SELECT MAX(seq) FROM audit_entry), 0) + 1
          OR NEW.prev_hash IS NOT COALESCE((SELECT hash FROM audit_entry ORDER BY seq DESC LIMIT 1), '{"0" * 64}')
        BEGIN SELECT RAISE(ABORT, '{MESSAGE}: INSERT is not the next of the chain'); END""",  # noqa: S608 - constants
]
SQLITE_BACK = [f"DROP TRIGGER IF EXISTS audit_entry_{verb}" for verb in ("update", "delete", "insert")]

POSTGRESQL = [
    f"""CREATE FUNCTION audit_entry_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE EXCEPTION '{MESSAGE}: % refused', TG_OP; END $$""",
    f"""CREATE FUNCTION audit_entry_next() RETURNS trigger LANGUAGE plpgsql AS $$
        DECLARE last_seq bigint; last_hash text;
        BEGIN
            SELECT seq, hash INTO last_seq, last_hash FROM audit_entry ORDER BY seq DESC LIMIT 1;
            IF NEW.seq <> COALESCE(last_seq, 0) + 1 OR NEW.prev_hash <> COALESCE(last_hash, '{"0" * 64}') THEN
                RAISE EXCEPTION '{MESSAGE}: INSERT is not the next of the chain';
            END IF;
            RETURN NEW;
        END $$""",  # noqa: S608 - constants
    """CREATE TRIGGER audit_entry_change BEFORE UPDATE OR DELETE ON audit_entry
        FOR EACH ROW EXECUTE FUNCTION audit_entry_refuse()""",
    """CREATE TRIGGER audit_entry_truncate BEFORE TRUNCATE ON audit_entry
        FOR EACH STATEMENT EXECUTE FUNCTION audit_entry_refuse()""",
    """CREATE TRIGGER audit_entry_insert BEFORE INSERT ON audit_entry
        FOR EACH ROW EXECUTE FUNCTION audit_entry_next()""",
]
POSTGRESQL_BACK = [
    "DROP TRIGGER IF EXISTS audit_entry_change ON audit_entry",
    "DROP TRIGGER IF EXISTS audit_entry_truncate ON audit_entry",
    "DROP TRIGGER IF EXISTS audit_entry_insert ON audit_entry",
    "DROP FUNCTION IF EXISTS audit_entry_refuse()",
    "DROP FUNCTION IF EXISTS audit_entry_next()",
]


def _run(editor, statements):
    with editor.connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def forwards(apps, editor):
    if editor.connection.vendor == "sqlite":
        _run(editor, SQLITE)
    elif editor.connection.vendor == "postgresql":
        _run(editor, POSTGRESQL)
    else:
        raise RuntimeError(
            f"the audit trail can't be protected on {editor.connection.vendor}: use SQLite or PostgreSQL"
        )


def backwards(apps, editor):
    _run(editor, SQLITE_BACK if editor.connection.vendor == "sqlite" else POSTGRESQL_BACK)


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]
    operations = [migrations.RunPython(forwards, backwards)]
