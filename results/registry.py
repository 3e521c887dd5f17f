"""Figures and tables by name: a file each, found in its folder and loaded when it is first used."""

import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

if TYPE_CHECKING:
    import pandas as pd

    from results.query import Database


class File(Protocol):
    """What each file has, besides the docstring that is its title and caption."""

    def data(self, db: "Database", sweep: str | None = None, **filters: Any) -> "pd.DataFrame":
        """Ask the store, and return what is shown as numbers."""

    def draw(self, frame: "pd.DataFrame") -> Any:
        """Return the figure or table of such a frame. Raises `results.frames.MissingData`."""


F = TypeVar("F", bound=File)
Save = Callable[[Any, Path, str, "pd.DataFrame"], list[Path]]
"""Writes what was drawn into a directory, under a name, with the frame behind it."""


@dataclass(frozen=True)
class Entry(Generic[F]):
    """A figure or table; its file, and all that draws it, is loaded when it is first used."""

    package: str
    name: str
    write: Save

    def load(self) -> F:
        """Return the file."""
        return cast(F, import_module(f"{self.package}.{self.name}"))

    @property
    def title(self) -> str:
        """The first line of the file's docstring."""
        document = self.load().__doc__
        assert document, f"{self.name} has no docstring"
        return document.strip().partition("\n")[0]

    def save(
        self, db: "Database", directory: Path, *, sweep: str | None = None, **filters: Any
    ) -> list[Path]:
        """Write it in every form, with the CSV behind it. Raises `results.frames.MissingData`."""
        file = self.load()
        frame = file.data(db, sweep, **filters)
        return self.write(file.draw(frame), directory, self.name, frame)


def entries(package: str, path: Iterable[str], write: Save) -> dict[str, Entry[Any]]:
    """Return an entry for each file of a package, by name."""
    return {module.name: Entry(package, module.name, write) for module in pkgutil.iter_modules(path)}
