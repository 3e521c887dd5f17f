"""The history of the tables: one Alembic revision a file in versions/, the newest is `schema.REVISION`.

A revision is never edited once a store may have been made by it: it is what such a store is. It
writes its tables out, whatever results/schema.py says today, and runs in the caller's transaction.
"""

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "results:migrations")
    return config


def revisions() -> list[str]:
    """Return every revision that this program knows, oldest first."""
    script = ScriptDirectory.from_config(_config())
    return [revision.revision for revision in script.walk_revisions()][::-1]


def migrate(connection: sa.Connection, revision: str = "head") -> None:
    """Bring the tables from the revision that `alembic_version` holds to a later one."""
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
