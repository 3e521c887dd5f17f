"""What Alembic runs for each command: the revisions, on the connection that `migrate` was given."""

from alembic import context

context.configure(connection=context.config.attributes["connection"])
context.run_migrations()
