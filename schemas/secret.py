"""Keys and passwords, which have no place in what is stored and shown."""

import re

_SECRET = re.compile(
    r"://[^/@]*:(?!\d+/)[^@]*@|://.*[?&][^=&]*(pass|secret|token|key|sig)[^=&]*=", re.IGNORECASE
)
"""A password before a URL's host, or one of its parameters; a number before a `/` is a port."""


def refuse_secret(url: str) -> None:
    """Raise `ValueError`, which does not repeat it, for a URL that holds a key or password."""
    if _SECRET.search(url):
        raise ValueError(
            "holds a key or password, which would be stored and shown with the sweep; give it to the nodes as their "
            "file system's own variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ...)"
        )
