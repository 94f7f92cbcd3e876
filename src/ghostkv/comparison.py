"""The commands `ghostkv bench pressure` and `ghostkv bench draw`. Heavy imports are inside them, as in `cli`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ghostkv.errors import ConfigError
from ghostkv.options import Model
from ghostkv.origin import origin

if TYPE_CHECKING:
    from ghostkv.pressure.cells import Cell
    from ghostkv.pressure.engines import Engine
    from ghostkv.pressure.rows import Row

_RESULTS = Path("benchmarks/results")
_WIDE = 260  # characters of a table where the output is no terminal

Trace = Annotated[
    list[str] | None,
    typer.Option(metavar="FORMAT=FILE", help="A trace for preset arrivals: azure, mooncake or servegen; repeatable."),
]


def pressure(
    preset: Annotated[
        list[str], typer.Option(help="short, tiny, table4, long, story, fairness or arrivals; repeatable.")
    ] = ["short"],  # noqa: B006 - typer copies it
    engine: Annotated[
        list[str],
        typer.Option(
            help="auto, segment, full, sink_window, each also as NAME:WEIGHTS[:KV]; vllm, llama, llama-shift, "
            "segment-over-vllm; or the URL of a server that runs. Repeatable; they take turns in this order."
        ),
    ] = ["auto"],  # noqa: B006
    cell: Annotated[str, typer.Option(help="Only cells whose name has this in it.")] = "",
    out: Annotated[Path, typer.Option(help="Rows go here; what is here already is not run again.")] = Path(
        "pressure.jsonl"
    ),
    plots: Annotated[Path | None, typer.Option(help="Folder for figures.")] = None,
    model: Model = "smollm2",
    repeats: Annotated[int, typer.Option(min=1, help="Runs of each cell.")] = 1,
    again: Annotated[bool, typer.Option("--again", help="Run what the file has already, too.")] = False,  # noqa: FBT002
    timeout: Annotated[
        float, typer.Option(min=0, metavar="SECONDS", help="When clients leave; 0: as the preset says.")
    ] = 0.0,
    wave: Annotated[
        int, typer.Option(min=0, help="Most requests that may run at once, in every engine; 0: its own default.")
    ] = 0,
    seed: Annotated[int, typer.Option(help="Of the prompts.")] = 0,
    temperature: Annotated[float, typer.Option(min=0)] = 0.8,
    seeded: Annotated[bool, typer.Option("--seeded", help="Send a seed (ghostkv flushes those last).")] = False,  # noqa: FBT002
    trace: Trace = None,
    results: Annotated[Path, typer.Option(help="Folder with results of `ghostkv eval`: the quality.")] = _RESULTS,
    vllm_environment: Annotated[Path | None, typer.Option(help="Default: peers/vllm in the cache directory.")] = None,
    llama_environment: Annotated[
        Path | None, typer.Option(help="Default: peers/llama.cpp in the cache directory.")
    ] = None,
    llama_model: Annotated[Path | None, typer.Option(help="GGUF for llama.cpp; default: Q8_0 of the model.")] = None,
) -> None:
    """Engines under one load, each as a process of its own, in turn: rows, a table, figures."""
    from ghostkv.model.checkpoint import open_checkpoint
    from ghostkv.model.pull import resolve_model
    from ghostkv.pressure.compare import Settings, compare
    from ghostkv.pressure.engines import Model as Weights
    from ghostkv.pressure.engines import Sampling
    from ghostkv.pressure.names import engine as named
    from ghostkv.pressure.quality import Results
    from ghostkv.pressure.rows import Rows
    from ghostkv.terminal import Progress

    cells = _cells(preset, trace or [], cell, seed, timeout)
    with Progress() as progress:
        path = resolve_model(model, progress)
        checkpoint = open_checkpoint(path)
        places = _places(path, vllm_environment, llama_environment, llama_model, progress)
        engines: list[Engine] = [named(each, places) for each in engine]
        tokenizer = checkpoint.tokenizer
        settings = Settings(
            Weights(checkpoint.name, path, checkpoint.shape.kv_bytes_per_token(2), checkpoint.shape.context),
            lambda text: len(tokenizer.prefix) + len(tokenizer.encode(text)),
            Sampling(temperature, seeded),
            wave,
            repeats,
            again,
            Results.read(results),
            _origin(),
        )
        found: list[Row] = []
        for row in compare(cells, engines, settings, Rows(out), progress):
            found.append(row)
            progress.done()
            print(_line(row), file=sys.stderr, flush=True)
    _show(found, plots)


def draw(
    rows: Annotated[Path, typer.Argument(help="The file that `bench pressure` wrote.")],
    plots: Annotated[Path, typer.Option(help="Folder for figures.")] = Path("plots"),
    markdown: Annotated[bool, typer.Option("--markdown", help="The table as Markdown.")] = False,  # noqa: FBT002
) -> None:
    """Print the tables and draw the figures of a comparison again; nothing runs."""
    from ghostkv.pressure.rows import read_rows
    from ghostkv.pressure.table import markdown as written

    found = read_rows(rows)
    if markdown:
        print(written(found))
        _draw(found, plots)
    else:
        _show(found, plots)


def _cells(presets: Sequence[str], traces: Sequence[str], only: str, seed: int, timeout: float) -> list[Cell]:
    from dataclasses import replace

    from ghostkv.pressure.presets import preset
    from ghostkv.pressure.traces import arrivals

    cells: list[Cell] = []
    for name in presets:
        if name == "arrivals":
            if not traces:
                raise ConfigError("preset arrivals needs a trace: --trace azure=FILE")
            pairs = [each.partition("=") for each in traces]
            cells += [arrivals(kind, Path(file)) for kind, _, file in pairs]
        else:
            cells += preset(name)
    found = [replace(cell, seed=seed, timeout_s=timeout or cell.timeout_s) for cell in cells if only in cell.name]
    if not found:
        raise ConfigError(f"no cell has {only!r} in its name: {', '.join(cell.name for cell in cells)}")
    return found


def _places(path: Path, vllm: Path | None, llama: Path | None, gguf: Path | None, progress: Any) -> Any:
    from ghostkv.config import cache_dir
    from ghostkv.pressure.names import Places

    peers = cache_dir() / "peers"
    llama = llama or peers / "llama.cpp"
    quantized = llama / f"{path.stem}-Q8_0.gguf"
    gguf = gguf or (quantized if quantized.exists() else path)
    return Places(vllm or peers / "vllm", lambda: _exported(path, peers, progress), llama, gguf)


def _exported(path: Path, peers: Path, progress: Any) -> Path:
    """The model in bfloat16 as a Hugging Face directory; a directory is one already."""
    if path.is_dir():
        return path
    known = peers / "smollm2-bf16"  # where benchmarks/engine_vs_peers.py writes that model
    exported = known if path.stem.startswith("SmolLM2-135M") else peers / f"{path.stem}-bf16"
    if not exported.exists():
        from ghostkv.model.checkpoint import open_checkpoint
        from ghostkv.model.export import export_hf

        progress(f"exporting {path.name}")
        export_hf(open_checkpoint(path), exported)
    return exported


def _line(row: Row) -> str:
    head = f"{row['cell']['name']}, {row['engine']}"
    if "failed" in row:
        return f"{head}: does not run: {row['failed']}"
    measures, nats = row["measures"], row["quality"]["extra_nats"]
    price = "nats not evaluated" if nats is None else f"+{nats:.3f} nats"
    return f"{head}: {measures['tokens_per_second'] or 0:.0f} tokens/s ({price}), {measures['outcomes']}"


def _show(rows: Sequence[Row], plots: Path | None) -> None:
    from ghostkv.pressure.table import tables

    console = Console()
    if not console.is_terminal:
        console = Console(width=_WIDE)
    for table in tables(rows):
        console.print(table)
    if plots is not None:
        _draw(rows, plots)


def _draw(rows: Sequence[Row], plots: Path) -> None:
    try:
        from ghostkv.pressure.plots import draw as drawn
    except ImportError as error:
        raise ConfigError(f"figures need an extra: pip install 'ghostkv[plot]' ({error})") from error
    for path in drawn(rows, plots):
        print(path)


def _origin() -> dict[str, Any]:
    """Where the numbers come from; the command without the places of this machine."""
    return origin() | {"command": shlex.join(["ghostkv", *map(_nameless, sys.argv[1:])])}


def _nameless(argument: str) -> str:
    """Without the folders of a path, alone or after FORMAT=."""
    kind, equals, path = argument.rpartition("=")
    return argument if path.startswith("http") else kind + equals + Path(path).name
