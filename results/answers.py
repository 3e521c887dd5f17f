"""The types of questions to the store: what a user's type checker knows of their answers."""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, cast, overload

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

Rows: TypeAlias = "pd.DataFrame | pa.Table"
"""What a question is answered with: a DataFrame, or with `to="arrow"` a table of pyarrow's."""
Columns: TypeAlias = str | Iterable[str] | None
To = Literal["pandas", "arrow"]


class Question(Protocol):
    """A question that may be about one sweep."""

    @overload
    def __call__(
        self,
        sweep: str | None = None,
        *,
        columns: Columns = None,
        to: Literal["pandas"] = "pandas",
        **filters: Any,
    ) -> "pd.DataFrame": ...
    @overload
    def __call__(
        self, sweep: str | None = None, *, columns: Columns = None, to: Literal["arrow"], **filters: Any
    ) -> "pa.Table": ...
    @overload
    def __call__(
        self, sweep: str | None = None, *, columns: Columns = None, to: To, **filters: Any
    ) -> Rows: ...


class GeneralQuestion(Protocol):
    """A question about the whole store."""

    @overload
    def __call__(
        self, *, columns: Columns = None, to: Literal["pandas"] = "pandas", **filters: Any
    ) -> "pd.DataFrame": ...
    @overload
    def __call__(self, *, columns: Columns = None, to: Literal["arrow"], **filters: Any) -> "pa.Table": ...
    @overload
    def __call__(self, *, columns: Columns = None, to: To, **filters: Any) -> Rows: ...


class Query(Protocol):
    """A query in the user's words."""

    @overload
    def __call__(
        self, query: str, *, to: Literal["pandas"] = "pandas", **parameters: Any
    ) -> "pd.DataFrame": ...
    @overload
    def __call__(self, query: str, *, to: Literal["arrow"], **parameters: Any) -> "pa.Table": ...
    @overload
    def __call__(self, query: str, *, to: To, **parameters: Any) -> Rows: ...


def as_question(method: Callable[..., Rows]) -> Question:
    """Tell type checkers that a method is a `Question`; they bind no `self` to one."""
    return cast(Question, method)


def as_general_question(method: Callable[..., Rows]) -> GeneralQuestion:
    """Tell type checkers that a method is a `GeneralQuestion`."""
    return cast(GeneralQuestion, method)


def as_query(method: Callable[..., Rows]) -> Query:
    """Tell type checkers that a method is a `Query`."""
    return cast(Query, method)
