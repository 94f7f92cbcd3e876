"""The commands about machine and models: verify, models, bench. Heavy imports are inside them, as in `cli`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.console import Console

from ghostkv.errors import ConfigError
from ghostkv.options import DEFAULTS, Dtype, KVDtype, Model, Threads

models = typer.Typer(no_args_is_help=True, help="Fetch, list and look into models.")
bench = typer.Typer(no_args_is_help=True, help="Measure.")
keys = typer.Typer(no_args_is_help=True, help="API keys of the server.")


@keys.command("new")
def new_key(tenant: Annotated[str, typer.Argument(help="Whom it stands for.")] = "me") -> None:
    """Make a random API key, and the entry for the file of `serve --api-keys`, which does not tell the key."""
    try:
        from ghostkv.server.key_file import made_key
    except ImportError as error:
        raise ConfigError(f"the server needs an extra: pip install 'ghostkv[server]' ({error})") from error
    key, entry = made_key(tenant)
    print(f"{key}\n\n{entry}")


class Shape(StrEnum):
    """How a table is printed."""

    TEXT = "text"
    JSON = "json"
    HTML = "html"


def verify(
    model: Model = "smollm2",
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
    tokens: Annotated[int, typer.Option(min=8, help="Length of each answer; a boundary comes after 150 to 192.")] = 204,
    only: Annotated[list[str] | None, typer.Option(help="Make this change only; repeatable.")] = None,
    shape: Annotated[Shape, typer.Option("--format", help="text, json or html.")] = Shape.TEXT,
) -> None:
    """Check that nothing that may happen around an answer changes a bit of it; exits with 1 if something does."""
    from ghostkv.launch import engine_config
    from ghostkv.model.pull import resolve_model
    from ghostkv.terminal import Progress
    from ghostkv.verify.changes import CHANGES
    from ghostkv.verify.table import as_html, as_json, as_text, verification

    if unknown := set(only or ()) - CHANGES.keys():
        raise ConfigError(f"--only {', '.join(sorted(unknown))}: the changes are {', '.join(CHANGES)}")
    config = engine_config(dtype=dtype, kv_dtype=kv_dtype, threads=threads)
    with Progress() as progress:
        found = verification(resolve_model(model, progress), config, tokens, progress, only or ())
    if shape is Shape.TEXT:
        Console().print(as_text(found))
    else:
        print(as_json(found) if shape is Shape.JSON else as_html(found))
    if not found.equal:
        raise typer.Exit(1)


@models.command("check")
def check_products(
    model: Model = "smollm2",
    again: Annotated[bool, typer.Option("--again", help="Measure although results are on disk.")] = False,  # noqa: FBT002
    dtype: Dtype = DEFAULTS.dtype,
    threads: Threads = DEFAULTS.threads,
) -> None:
    """Check that a row of a matrix product has the same bits in every batch, and print what was found."""
    from ghostkv.launch import engine_config
    from ghostkv.model.pull import resolve_model
    from ghostkv.model.verify import verify_model
    from ghostkv.tables import check_table
    from ghostkv.terminal import Progress

    with Progress() as progress:
        path = resolve_model(model, progress)
        report = verify_model(path, engine_config(dtype=dtype, threads=threads), progress, again=again)
    Console().print(check_table(report))
    print(f"{report.fresh} of {len(report.checks)} measured now, the others read from disk")


@models.command("pull")
def pull_model(
    name: Annotated[str, typer.Argument(help="A known name, or org/name[@revision] of the Hub.")] = "smollm2",
) -> None:
    """Download a model; an interrupted download goes on where it was."""
    from ghostkv.model.pull import resolve_model
    from ghostkv.terminal import Progress

    with Progress() as progress:
        path = resolve_model(name, progress)
    print(path)


@models.command("list")
def list_models() -> None:
    """List the models known by name."""
    from ghostkv.config import cache_dir
    from ghostkv.model.pull import KNOWN
    from ghostkv.tables import model_table

    folder = cache_dir() / "models"
    rows = [
        (name, f"{known.package} {known.version}", known.licence, "here" if (folder / name).exists() else "not pulled")
        for name, known in KNOWN.items()
    ]
    Console().print(model_table(rows))


@models.command("inspect")
def inspect(model: Annotated[str, typer.Argument(help="A known name or a path.")] = "smollm2") -> None:
    """Print a model's sizes, what its KV costs, and how long it takes to load."""
    from ghostkv.model.inspect import inspect_model
    from ghostkv.model.pull import resolve_model
    from ghostkv.tables import inspection_table
    from ghostkv.terminal import Progress

    with Progress() as progress:
        progress(f"loading {model}")
        found = inspect_model(resolve_model(model, progress))
    Console().print(inspection_table(found))


@bench.callback()
def _bench() -> None:
    """Measure."""


@bench.command("engine")
def bench_engine(
    model: Model = "smollm2",
    sequences: Annotated[str, typer.Option(help="Batch sizes.")] = "1,8,32,64,128",
    prompt: Annotated[int, typer.Option(min=1, help="Prompt tokens of each sequence.")] = 64,
    tokens: Annotated[int, typer.Option(min=2, help="Output tokens of each sequence.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each batch size, of which the median counts.")] = 5,
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
) -> None:
    """Tokens per second of the engine alone, where the time goes, and how near a step is to what the machine can do."""
    from ghostkv.bench.engine import PARTS, Cell, Workload
    from ghostkv.bench.engine import bench_engine as measure
    from ghostkv.launch import engine_config
    from ghostkv.model.pull import resolve_model
    from ghostkv.tables import bench_table, shares_table
    from ghostkv.terminal import Progress

    workload = Workload(_sizes(sequences), prompt, tokens, repeats)
    cells: list[Cell] = []
    with Progress() as progress:
        path = resolve_model(model, progress)
        for cell in measure(path, engine_config(dtype=dtype, kv_dtype=kv_dtype, threads=threads), workload, progress):
            cells.append(cell)
            progress(f"{cell.sequences} sequences: {cell.tokens_per_second:.0f} tokens/s")
    reached = [(cell.roofline.step_s, cell.roofline.share, cell.roofline.bound) for cell in cells]
    rates = [(cell.sequences, cell.tokens_per_second, cell.first_token_s) for cell in cells]
    Console().print(bench_table((*rate, *roofline) for rate, roofline in zip(rates, reached)))
    Console().print(shares_table(PARTS, [(cell.sequences, [cell.shares[part] for part in PARTS]) for cell in cells]))


def _sizes(text: str) -> tuple[int, ...]:
    sizes = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and int(part) for part in sizes):
        raise ConfigError(f"--sequences {text!r} is not a list of batch sizes such as 1,8,32")
    if max(map(int, sizes)) > DEFAULTS.max_sequences:
        raise ConfigError(f"--sequences {text!r}: at most {DEFAULTS.max_sequences} run in one step")
    return tuple(map(int, sizes))
