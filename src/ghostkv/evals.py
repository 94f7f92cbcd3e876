"""The command about quality: `ghostkv eval continuity`. Heavy imports are inside it, as in `cli`."""

from __future__ import annotations

import asyncio
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from ghostkv.errors import ConfigError
from ghostkv.options import DEFAULTS, Budget, Dtype, KVDtype, Model, Threads
from ghostkv.origin import commit

if TYPE_CHECKING:
    from ghostkv.config import EngineConfig
    from ghostkv.evaluate.recall import Outcome, Source
    from ghostkv.evaluate.report import Evaluation

_WIDE = 220  # columns where there is no terminal to fit
_STRIDE = 97  # sentences from the start of one document's filler to the next

app = typer.Typer(no_args_is_help=True, help="Measure what an answer keeps.")


@app.callback()
def _eval() -> None:
    """Measure what an answer keeps."""


@app.command()
def continuity(
    model: Model = "smollm2",
    text: Annotated[
        Path | None, typer.Option(help="Text for the perplexity test; absent: Python's own documentation.")
    ] = None,
    texts: Annotated[str, typer.Option(help="Texts of the perplexity test.")] = "prose,recurring",
    form: Annotated[str, typer.Option(help="How texts are read: raw (a completion) or chat (an answer).")] = "raw",
    parts: Annotated[str, typer.Option(help="What to run.")] = "perplexity,recall,instructions,drift",
    probes: Annotated[int, typer.Option(min=1, help="Questions for each distance, in whole documents.")] = 400,
    distances: Annotated[str, typer.Option(help="Segments between fact and question.")] = "1,5,20,50",
    forms: Annotated[str, typer.Option(help="How to ask: direct, paraphrase, continued.")] = "direct",
    documents: Annotated[
        Path | None,
        typer.Option(help="JSON lines, plain or .gz, with content and title, to ask about; absent: generated ones."),
    ] = None,
    filler: Annotated[
        Path | None, typer.Option(help="Text whose sentences stand between the facts; absent: invented ones.")
    ] = None,
    arms: Annotated[str, typer.Option(help="Names of recall arms; absent: all.")] = "",
    choice: Annotated[bool, typer.Option(help="Forced choice besides greedy answers.")] = True,  # noqa: FBT002
    passages: Annotated[int, typer.Option(min=1, help="Passages of the perplexity test.")] = 3,
    boundaries: Annotated[int, typer.Option(min=3, help="Boundaries in each passage.")] = 20,
    targets: Annotated[str, typer.Option(help="Segment lengths of the perplexity curves.")] = "32,64,150",
    tails: Annotated[str, typer.Option(help="Tails of the perplexity curves.")] = "16,32,64,96,128,192",
    segments: Annotated[str, typer.Option(help="Segments of the tests of instructions and of drift.")] = "20,50",
    out: Annotated[Path, typer.Option(help="Folder for the record, its plot and all answers.")] = Path("eval"),
    kv_budget: Budget = "1GiB",
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
) -> None:
    """Recall, perplexity, instructions and drift over many boundaries, beside the whole history and other baselines."""
    from ghostkv.evaluate.curves import Curves
    from ghostkv.evaluate.documents import Shape
    from ghostkv.evaluate.recall import Plan
    from ghostkv.evaluate.report import Evaluation
    from ghostkv.launch import engine_config

    shape = Shape(distances=_numbers("distances", distances))
    conversations = -(-probes // shape.probes)
    few = -(-conversations // 4)
    lengths = _numbers("segments", segments)
    if len(lengths) != 2:
        raise ConfigError(f"--segments {segments!r} must give two numbers: for instructions and for drift")
    plan = Evaluation(
        text=_text(text),
        parts=_names(parts),
        recall=Plan(conversations, shape, _names(forms), choice, few, _source(documents, filler)),
        curves=Curves(
            _numbers("targets", targets), _numbers("tails", tails), boundaries, passages, form=form, texts=_names(texts)
        ),
        instruction_segments=lengths[0],
        drift_segments=lengths[1],
        arms=_names(arms),
    )
    config = engine_config(kv_budget=kv_budget, dtype=dtype, kv_dtype=kv_dtype, threads=threads)
    _run(model, plan, out, config)


def _run(model: str, plan: Evaluation, out: Path, config: EngineConfig) -> None:
    from ghostkv.evaluate.lab import Lab
    from ghostkv.evaluate.report import evaluate, header, write_json
    from ghostkv.evaluate.tables import tables
    from ghostkv.launch import open_worker
    from ghostkv.terminal import Progress

    with Progress() as progress:
        worker = open_worker(model, config, announce=progress)
        try:
            lab = Lab(worker)
            record = header(lab, commit(), shlex.join((Path(sys.argv[0]).name, *sys.argv[1:])))

            async def all_parts() -> None:
                async for name, found in evaluate(lab, plan, progress, keeper(out / "answers.jsonl")):
                    record[name] = found
                    write_json(out / "continuity.json", record)  # after each part: an interrupted run keeps the others

            asyncio.run(all_parts())
        finally:
            worker.close()
    console = Console()
    if not console.is_terminal:
        console.width = _WIDE
    for table in tables(record):
        console.print(table)
    _plot(out / "continuity.png", record)
    typer.echo(f"written to {out}", err=True)


def _plot(path: Path, record: dict[str, Any]) -> None:
    try:
        from ghostkv.evaluate.plot import plot_report
    except ImportError as error:
        raise ConfigError(f"the plot needs an extra: pip install 'ghostkv[plot]' ({error})") from error
    plot_report(path, record)


def keeper(path: Path) -> Callable[[Iterable[Outcome]], None]:
    """Appends outcomes to a file of JSON lines, which it begins anew."""
    import json
    from dataclasses import asdict

    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("", encoding="utf-8")

    def keep(outcomes: Iterable[Outcome]) -> None:
        with path.open("a", encoding="utf-8") as file:
            for outcome in outcomes:
                file.write(json.dumps(asdict(outcome), ensure_ascii=False) + "\n")

    return keep


def _names(text: str) -> tuple[str, ...]:
    return tuple(filter(None, (part.strip() for part in text.split(","))))


def _numbers(option: str, text: str) -> tuple[int, ...]:
    parts = _names(text)
    if not parts or not all(part.isascii() and part.isdecimal() and int(part) for part in parts):
        raise ConfigError(f"--{option} {text!r} is not a list of numbers such as 1,5,20")
    return tuple(map(int, parts))


def _text(path: Path | None) -> str:
    """The text of a file, or Python's reference documentation, which every installation has."""
    from ghostkv.terminal import read_prompt

    if path is not None:
        return read_prompt(None, path)
    from pydoc_data.topics import topics

    return "\n\n".join(topics.values())


def _source(documents: Path | None, filler: Path | None) -> Source:
    """Real documents, or generated ones with the filler that is asked for."""
    from ghostkv.evaluate.library import read_library
    from ghostkv.evaluate.recall import Invented

    if documents is None:
        return Invented(_filler(filler))
    if filler is not None:
        raise ConfigError("--filler stands between the facts of generated documents: it does not go with --documents")
    return read_library(documents)


def _filler(path: Path | None) -> Callable[[int], Iterator[str]] | None:
    """For each document's seed, the sentences of the text from another place on."""
    if path is None:
        return None
    from ghostkv.evaluate.invention import prose

    text = _text(path)
    return lambda seed: islice(prose(text), _STRIDE * seed, None)
