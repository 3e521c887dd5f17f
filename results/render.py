"""A table of texts, and the ways to write it: terminal, Markdown, LaTeX."""

import re
from collections.abc import Sequence
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
    "<": "$<$",
    ">": "$>$",
} | {character: f"\\{character}" for character in "&%$#_{}"}


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

    def text(self) -> str:
        """Return the table for a terminal, its columns aligned by spaces."""
        lines = [[column.head for column in self.columns], *self.rows]
        widths = [max(map(len, cells)) for cells in zip(*lines, strict=True)]
        heads, *rows = [self._line(line, widths).rstrip() for line in lines]
        rule = "  ".join("─" * width for width in widths)
        return "\n".join([self.title, "", heads, rule, *rows, "", self.caption]) + "\n"

    def _line(self, cells: Sequence[str], widths: Sequence[int]) -> str:
        return "  ".join(
            cell.ljust(width) if column.align == "left" else cell.rjust(width)
            for cell, width, column in zip(cells, widths, self.columns, strict=True)
        )

    def markdown(self) -> str:
        """Return the table as GitHub's Markdown."""
        rule = ["---:" if column.align == "right" else ":---" for column in self.columns]
        lines = [[column.head for column in self.columns], rule, *self.rows]
        escaped = [" | ".join(_markdown(cell) for cell in line) for line in lines]
        table = "\n".join(f"| {line} |" for line in escaped)
        return f"**{_markdown(self.title)}**\n\n{table}\n\n{_markdown(self.caption)}\n"

    def latex(self) -> str:
        r"""Return the table as LaTeX for the `booktabs` package."""
        spec = "".join(column.align[0] for column in self.columns)
        lines = [[column.head for column in self.columns], *self.rows]
        heads, *rows = [" & ".join(map(_latex, line)) + r" \\" for line in lines]
        body = "\n".join([r"\toprule", heads, r"\midrule", *rows, r"\bottomrule"])
        return (
            "\\begin{table}\n\\centering\n"
            f"\\caption{{\\textbf{{{_latex(self.title)}}} {_latex(self.caption)}}}\n"
            f"\\label{{tab:{self.name}}}\n\\begin{{tabular}}{{{spec}}}\n{body}\n\\end{{tabular}}\n\\end{{table}}\n"
        )


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_<`\[])", r"\\\1", text)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


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
