"""Keys and passwords, which have no place in what is stored and shown."""

import re

_LOGIN = re.compile(r"://[^/@]*:[^/@]*@|^https?://[^/@]+@|^s3[an]?://[^/@]*:.*@", re.IGNORECASE)
"""A password or token before the host; one for S3 may have a `/` in it."""
_PARAMETER = re.compile(r"(?:^|[&;])([^=&;]*)=")
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_SECRET = {"pass", "passwd", "password", "secret", "token", "key", "apikey", "sig", "signature"}


def refuse_secret(url: str) -> None:
    """Raise `ValueError`, which does not repeat it, for a URL that holds a key or password."""
    query = url.partition("?")[2] if "://" in url else ""
    words = {word.lower() for name in _PARAMETER.findall(query) for word in _WORD.findall(name)}
    if _LOGIN.search(url) or words & _SECRET:
        raise ValueError(
            "holds a key or password, which would be stored and shown with the sweep; give it to the nodes as their "
            "file system's own variables (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, ...)"
        )
