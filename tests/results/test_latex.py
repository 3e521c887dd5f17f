"""Every table's LaTeX goes through a real LaTeX with `booktabs`, and fits the page."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from results.query import Database
from results.reference import published
from results.render import Column, Table
from results.store import Store
from results.tables import TABLES
from tests.conftest import make_sweep
from tests.results.measured import tell_evals

# The text width of NeurIPS' and ICLR's pages.
_PAGE = r"""\documentclass{article}
\usepackage[textwidth=5.5in,textheight=9in]{geometry}
\usepackage{booktabs}
\begin{document}
%s
\end{document}
"""


def compiled(text: str, directory: Path) -> str:
    """Return what LaTeX says to a document of this text, and fail where it fails."""
    program = shutil.which("pdflatex")
    if program is None:
        assert "CI" not in os.environ, "CI must have LaTeX"
        pytest.skip("LaTeX is not installed")
    (directory / "page.tex").write_text(_PAGE % text, encoding="utf-8")
    command = [program, "-interaction=nonstopmode", "-halt-on-error", "page.tex"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]
    assert (directory / "page.pdf").stat().st_size > 0
    return done.stdout


def test_every_table_compiles_and_is_no_wider_than_the_page(
    store: Store, troubled: Database, tmp_path: Path
) -> None:
    tell_evals(store, make_sweep())
    files = {name: entry.load() for name, entry in TABLES.items()}
    texts = [file.draw(file.data(troubled, "small")).latex() for file in files.values()]
    beside = files["table2"].data(troubled, "small", xsa_lambda=1, overlay=published("table2"))
    texts.append(files["table2"].draw(beside).latex())
    said = compiled("\n".join(texts), tmp_path)
    assert "Overfull" not in said, said[-2000:]


def test_texts_of_users_compile(tmp_path: Path) -> None:
    odd = r"50 % of a_b & {c} #1 $x^2$ \ ~ < > − – — λ β Δ ± × † ≠ é [x] *"
    cells = [["[0, 1]", odd], ["", odd]]
    compiled(
        Table("x", odd, odd, [Column("[a]"), Column(odd)], cells, best={(0, 0), (1, 1)}, groups={1}).latex(),
        tmp_path,
    )
