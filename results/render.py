"""A table of texts, and the ways to write it: terminal, Markdown, LaTeX."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "λ": r"$\lambda$",
    "β": r"$\beta$",
    "Δ": r"$\Delta$",
    "−": "$-$",
    "—": "---",
    "–": "--",
    "±": r"$\pm$",
    "×": r"$\times$",
    "†": r"$^\dagger$",
    "≠": r"$\neq$",
    "[": "{[}",  # at the beginning of a row it would be a length
    "]": "{]}",
    "<": "$<$",
    ">": "$>$",
} | {character: f"\\{character}" for character in "&%$#_{}"}

_SIZES = {8: "footnotesize", 11: "scriptsize"}
"""Size of letters from so many columns on, so that a table fits the text width of a page (5.5 inches)."""


@dataclass(frozen=True)
class Column:
    """A column's head and how its cells are set."""

    head: str
    align: Literal["left", "right"] = "right"


@dataclass(frozen=True)
class Table:
    """Cells as texts, ready to be set. `name` labels it, `title` and `caption` are for its reader."""

    name: str
    title: str
    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[str]]
    best: Collection[tuple[int, int]] = frozenset()
    """Cells (row, column) that are set in bold."""
    groups: Collection[int] = frozenset()
    """Rows before which a group of rows ends."""

    def text(self) -> str:
        """Return the table for a terminal, its columns aligned by spaces."""
        lines = [[column.head for column in self.columns], *self.rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        heads, *rows = [self._line(line, widths).rstrip() for line in lines]
        rule = "  ".join("─" * width for width in widths)
        rows = [f"\n{row}" if i in self.groups else row for i, row in enumerate(rows)]
        caption = re.sub(r"Bold: [^.]*\. ", "", self.caption)  # of which plain text has none
        return "\n".join([self.title, "", heads, rule, *rows, "", caption]) + "\n"

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        return "  ".join(
            cell.ljust(width) if column.align == "left" else cell.rjust(width)
            for cell, width, column in zip(cells, widths, self.columns, strict=True)
        )

    def markdown(self) -> str:
        """Return the table as GitHub's Markdown."""
        rule = ["---:" if column.align == "right" else ":---" for column in self.columns]
        lines = [[_markdown(column.head) for column in self.columns], rule]
        lines += self._set(_markdown, lambda cell: f"**{cell}**")
        table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
        return f"**{_markdown(self.title)}**\n\n{table}\n\n{_markdown(self.caption)}\n"

    def latex(self) -> str:
        r"""Return the table as LaTeX for the `booktabs` package; smaller where it has many columns."""
        spec = "".join(column.align[0] for column in self.columns)
        sizes = [size for columns, size in _SIZES.items() if len(self.columns) >= columns]
        wide = f"\\{sizes[-1]}\n\\setlength{{\\tabcolsep}}{{2.5pt}}\n" if sizes else ""
        lines = self._set(_latex, lambda cell: rf"\textbf{{{cell}}}")
        rows = [" & ".join(line) + r" \\" for line in lines]
        rows = [f"\\addlinespace\n{row}" if i in self.groups else row for i, row in enumerate(rows)]
        heads = " & ".join(_latex(column.head) for column in self.columns) + r" \\"
        body = "\n".join([r"\toprule", heads, r"\midrule", *rows, r"\bottomrule"])
        return (
            "\\begin{table}\n\\centering\n"
            f"\\caption{{\\textbf{{{_latex(self.title)}}} {_latex(self.caption)}}}\n"
            f"\\label{{tab:{self.name}}}\n{wide}\\begin{{tabular}}{{{spec}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}\n"
        )

    def _set(self, escape: Callable[[str], str], bold: Callable[[str], str]) -> list[list[str]]:
        """Return the escaped cells of the rows, the best of them in bold."""
        return [
            [bold(escape(cell)) if (i, j) in self.best else escape(cell) for j, cell in enumerate(row)]
            for i, row in enumerate(self.rows)
        ]


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<`\[])", r"\\\1", text)


def _latex(text: str) -> str:
    parts = ["".join(_LATEX.get(character, character) for character in part) for part in text.split("--")]
    return "-{}-".join(parts)  # else TeX makes a dash of an option's hyphens


def number(value: float, *, digits: int = 4) -> str:
    """Return a loss; an em dash for a NaN."""
    return "—" if value != value else f"{value:.{digits}f}"


def signed(value: float, *, digits: int = 4) -> str:
    """Return a difference with its sign and a true minus."""
    return "—" if value != value else f"{value:+.{digits}f}".replace("-", "−")


def interval(low: float, high: float, *, digits: int = 4) -> str:
    """Return `[−0.0150, −0.0063]`."""
    return "—" if low != low else f"[{signed(low, digits=digits)}, {signed(high, digits=digits)}]"


def p_value(p: float) -> str:
    """Return p to two digits, `<0.001` below that."""
    if p != p:
        return "—"
    return "<0.001" if p < 0.001 else f"{p:.3f}" if p < 0.0995 else f"{p:.2f}"
