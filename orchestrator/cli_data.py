"""`xsa data`: text to tokens that sweeps train on, and what there is of it."""

import sys
from typing import Annotated, Any, Literal

import typer

from orchestrator.arguments import AsJson, Data, Db

data_app = typer.Typer(
    help="Prepare data to train on: prepare, ls, show, verify, sample.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Name = Annotated[str, typer.Argument(help="A data set: its name, source, or the beginning of its id.")]


@data_app.command()
def prepare(
    source: Annotated[
        str,
        typer.Argument(
            help="wikitext, tinystories, fineweb, hf:OWNER/NAME[:CONFIG], text:PATH, jsonl:PATH or parquet:PATH.",
            metavar="SOURCE",
        ),
    ],
    tokens: Annotated[
        float | None,
        typer.Option(
            help="Stop after the document that reaches so many.", show_default="all there are", min=1
        ),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(help="Processes that tokenise.", show_default="one a core", min=1)
    ] = None,
    tokenizer: Annotated[str, typer.Option(help="gpt2, bytes, or another of tiktoken's.")] = "gpt2",
    held_out: Annotated[
        float | None,
        typer.Option(
            help="Share of the documents to hold out.",
            show_default="0.05 of files, 0.0005 on the Hub",
            min=0,
            max=1,
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the choice of those that are held out.")] = 2357,
    empty: Annotated[
        Literal["refuse", "skip"] | None,
        typer.Option(
            help="What to do about empty documents.", show_default="refuse in files, skip on the Hub"
        ),
    ] = None,
    revision: Annotated[
        str | None, typer.Option(help="Of a repository on the Hub.", show_default="the newest")
    ] = None,
    data: Data = None,
    db: Db = None,
) -> None:
    """Tokenise a text into a data folder.

    Interrupted or killed, the same command goes on where it was, and ends with the same bytes.

    Example: xsa data prepare fineweb --tokens 1e9
    """
    from orchestrator.data import cpus, data_folder, print_gone, summary
    from orchestrator.data import prepare as prepare_data
    from orchestrator.show import console
    from schemas.dataset import check_tokenizer, parse_source
    from trainer.data_folder import Library
    from trainer.prepare import Asked

    asked = Asked(
        tokens=None if tokens is None else int(tokens),
        held_out=held_out,
        seed=seed,
        empty=empty,
        revision=revision,
    )
    library = Library(data_folder(data, db))
    prepared, new = prepare_data(
        library, parse_source(source), check_tokenizer(tokenizer), asked, workers or cpus(), console
    )
    if not new:
        print_gone(console, [source])
    console.print(("" if new else "Already there: ") + summary(prepared), markup=False, soft_wrap=True)
    console.print(f"In {prepared.path}; sweeps name it `dataset: {source}`.", markup=False, soft_wrap=True)


@data_app.command(name="ls")
def list_data(data: Data = None, db: Db = None, json: AsJson = False) -> None:
    """List the data sets in the data folder.

    Example: xsa data ls
    """
    from orchestrator.data import summary
    from orchestrator.show import console, print_json

    library = _library(data, db)
    everything, damaged = library.all()
    for error in damaged.values():
        print(f"xsa: {error}", file=sys.stderr)
    if json:
        print_json([_told(prepared) for prepared in everything])
        return
    for prepared in everything:
        console.print(summary(prepared), markup=False, soft_wrap=True)
    if not everything and not damaged:
        console.print(
            f"{library.folder} holds no data sets yet; `xsa data prepare SOURCE` makes one.", soft_wrap=True
        )


@data_app.command()
def show(name: Name, data: Data = None, db: Db = None, json: AsJson = False) -> None:
    """Say what a data set is and where it came from.

    Example: xsa data show fineweb
    """
    from orchestrator.show import console, print_json

    prepared = _library(data, db).named(name)
    told = _told(prepared)
    if json:
        print_json(told)
        return
    width = max(map(len, told))
    for key, value in told.items():
        shown = f"{value:,}" if isinstance(value, int) else value
        console.print(f"{key.replace('_', ' '):<{width}}  {shown}", markup=False, soft_wrap=True)


@data_app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Data sets; all without.", show_default=False)
    ] = None,
    data: Data = None,
    db: Db = None,
) -> None:
    """Read every shard where it lies and compare it with its hash; exit code 1 and a line for each that is wrong.

    Example: xsa data verify fineweb
    """
    from orchestrator.show import console

    library = _library(data, db)
    chosen, damaged = ([library.named(name) for name in names], {}) if names else library.all()
    problems = [str(error) for error in damaged.values()]
    for prepared in chosen:
        with console.status("") as status:
            found = prepared.problems(lambda shard: status.update(f"reading {shard.file}"))
        problems += found
        if not found:
            n = len(prepared.manifest.train) + len(prepared.manifest.val)
            console.print(f"{prepared.name}: {n} shards are sound.", markup=False, soft_wrap=True)
    for problem in problems:
        console.print(problem, markup=False, soft_wrap=True)
    if problems:
        raise typer.Exit(1)


@data_app.command()
def sample(
    name: Name,
    n: Annotated[int, typer.Option("--documents", "-n", help="How many.", min=1)] = 3,
    split: Annotated[Literal["train", "val"], typer.Option(help="To train on, or held out.")] = "train",
    seed: Annotated[int, typer.Option(help="Another one shows others.", min=0)] = 0,
    data: Data = None,
    db: Db = None,
) -> None:
    """Show some of a data set's documents, decoded; long ones are cut.

    Example: xsa data sample fineweb --split val -n 5
    """
    from orchestrator.show import console
    from trainer.sample import documents

    prepared = _library(data, db).named(name)
    for begin, text in documents(prepared, split, n=n, seed=seed):
        console.print(f"-- {split}, token {begin:,}", style="dim", markup=False, highlight=False)
        console.print(text, markup=False, soft_wrap=True)


def _library(data: str | None, db: str | None) -> Any:
    from orchestrator.data import data_folder
    from trainer.data_folder import Library

    return Library(data_folder(data, db))


def _told(prepared: Any) -> dict[str, Any]:
    """Return what a data set is, for `show` and in JSON."""
    told = prepared.manifest
    return {
        "name": prepared.name,
        "folder": prepared.path,
        "data_id": told.data_id,
        "source": told.origin.source,
        "revision": told.origin.revision,
        "files": [file.path for file in told.origin.files],
        "tokenizer": told.tokenizer,
        "dtype": told.dtype,
        "train_tokens": told.tokens("train"),
        "held_out_tokens": told.tokens("val"),
        "train_documents": told.train_documents,
        "held_out_documents": told.val_documents,
        "empty_documents": told.empty_documents,
        "text_bytes": told.text_bytes,
        "asked_tokens": told.recipe.tokens,
        "held_out_share": told.recipe.held_out,
        "split_seed": told.recipe.seed,
        "train_shards": len(told.train),
        "held_out_shards": len(told.val),
    }
