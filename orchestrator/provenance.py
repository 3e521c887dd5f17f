"""Which code and which packages a run is made with."""

import hashlib
import json
import subprocess
from contextlib import suppress
from importlib import metadata
from pathlib import Path

from results.claims import Provenance

_PACKAGES = (
    "xsa-sweeps",
    "torch",
    "ray",
    "numpy",
    "tiktoken",
    "datasets",
    "sqlalchemy",
    "pandas",
    "pydantic",
)
_EXTRAS = ("lm-eval",)
"""Packages that decide numbers where they are installed."""
ROOT = Path(__file__).resolve().parent.parent
"""The folder of this program's packages."""
CODE = ("schemas", "trainer", "results", "orchestrator")
"""The packages that are this program."""
TOLD = "provenance.json"
"""Where a copy of this program that was sent to a cluster keeps the commit it was made from."""


def provenance() -> Provenance:
    """Return the commit of this program's own checkout, or of the one it was sent from, and the packages' versions."""
    told = ROOT / TOLD
    if told.exists():
        sent = json.loads(told.read_text(encoding="utf-8"))
        return Provenance(sent["git_sha"], sent["dirty"], packages())
    # An installed copy may lie inside a repository that is not this program's.
    if _git("rev-parse", "--show-toplevel") != str(ROOT):
        return Provenance(None, None, packages())
    return Provenance(_git("rev-parse", "HEAD"), bool(_git("status", "--porcelain")), packages())


def packages() -> dict[str, str]:
    """Return the versions of the packages that numbers follow from."""
    installed = {name: metadata.version(name) for name in _PACKAGES}
    for name in _EXTRAS:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def code_sha256() -> str:
    """Return the hash of this program's own files."""
    digest = hashlib.sha256()
    for package in CODE:
        for path in sorted((ROOT / package).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
        )
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
