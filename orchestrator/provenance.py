"""Which code and which packages a run is made with."""

import subprocess
from importlib import metadata
from pathlib import Path

from results.claims import Provenance

PACKAGES = ("xsa-sweeps", "torch", "ray", "numpy", "tiktoken", "datasets", "sqlalchemy", "pandas", "pydantic")


def provenance() -> Provenance:
    """Return the commit of this program's own checkout, if it is one, and the packages' versions."""
    root = Path(__file__).resolve().parent.parent
    packages = {name: metadata.version(name) for name in PACKAGES}
    # An installed copy may lie inside a repository that is not this program's.
    if _git(root, "rev-parse", "--show-toplevel") != str(root):
        return Provenance(None, None, packages)
    return Provenance(_git(root, "rev-parse", "HEAD"), bool(_git(root, "status", "--porcelain")), packages)


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
