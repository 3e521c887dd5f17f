"""What a database said, as one line that says what helps."""

import re

from sqlalchemy.exc import DBAPIError

_HELP = {
    # SQLite
    r"database (table )?is locked": "the database is locked by another program (waited {waited} s). "
    "Close it there, and try again.",
    r"database disk image is malformed|malformed database schema|file is not a database": "the database is damaged "
    "({said}). Move it away; `xsa ingest` rebuilds it from the arms' folders.",
    r"readonly database": "the database cannot be written: there is no write access to it or its directory.",
    r"unable to open database": "the database cannot be opened ({said}): SQLite has to make files in its directory, "
    "and could not. Give it write access there, or choose another store with --db.",
    r"database or disk is full": "the disk is full. Nothing was lost: free some space and run the sweep again.",
    # PostgreSQL, by the code of an error or, before there is a connection, by its text
    r"^55P03 ": "the database is locked by another program (waited {waited} s). Close it there, and try again.",
    r"^40P01 ": "this and another program waited for each other ({said}). Nothing was changed; try again.",
    r"^25006 ": "the database cannot be written: it is open for reading only ({said}).",
    r"^42501 ": "this user lacks a right ({said}). The database's owner can give it: GRANT ALL ON SCHEMA public TO ...",
    r"^53100 ": "the server's disk is full. Nothing was lost: free some space and run the sweep again.",
    r"password authentication failed|no password supplied": "the server refuses the user or the password ({said}). "
    "They come from the URL, or the password from PGPASSWORD or ~/.pgpass.",
    r'database ".*" does not exist': "the server has no such database ({said}). Make it with createdb.",
    r"^\S* connection (failed|is bad|timeout)|failed to resolve host": "the server cannot be reached ({said}). "
    "Start it, or choose another store with --db.",
}
"""What to say by a pattern in what a database says, after the SQLSTATE where there is one."""


def explain(error: DBAPIError, *, waited: float) -> str:
    """Return what to tell the user of an error. `waited` is the longest wait for a lock, in seconds."""
    said = str(error.orig or error).strip().splitlines()[0]
    text = f"{getattr(error.orig, 'sqlstate', None) or '-'} {said}"
    if error.connection_invalidated:
        return f"the connection to the server was lost ({said}). Try again."
    said = re.sub(r"^(connection (failed|is bad): )?(.*FATAL: +)?", "", said)
    for pattern, advice in _HELP.items():
        if re.search(pattern, text):
            return advice.format(said=said, waited=waited)
    return said
