"""The command line. Each command parses, calls and prints; what is heavy is imported inside, so that --help is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from ghostkv import comparison, evals, explain, kept, service, simulate, sizing, tools
from ghostkv.errors import GhostError
from ghostkv.options import (
    DEFAULTS,
    Budget,
    Dtype,
    KVDtype,
    MaxTokens,
    Model,
    Plan,
    Residency,
    Seed,
    Speculation,
    Temperature,
    Threads,
    TopP,
)
from ghostkv.residency import DEFAULT_RESIDENCY
from ghostkv.startup import pause_collection


class _Group(TyperGroup):
    """Prints an error of ghostkv's tree as one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except GhostError as error:
            typer.echo(f"error: {error.message}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(cls=_Group, no_args_is_help=True, add_completion=False, help="An LLM engine with a bounded KV cache.")
app.command()(tools.verify)
app.command()(explain.explain)
app.command()(service.serve)
app.command()(service.drain)
app.command()(simulate.sim)
app.command()(sizing.size)
app.add_typer(tools.models, name="models")
tools.bench.command("pressure")(comparison.pressure)
tools.bench.command("draw")(comparison.draw)
app.add_typer(tools.bench, name="bench")
app.add_typer(tools.keys, name="keys")
app.add_typer(kept.app, name="sessions")
app.add_typer(evals.app, name="eval")


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for trace.jsonl and memory.png.")] = Path("demo"),
    model: Model = "smollm2",
    tokens: Annotated[int, typer.Option(min=1, help="Length of the story.")] = 1500,
    kv_budget: Budget = "12MiB",
) -> None:
    """Write a story longer than its KV budget, and show what memory did."""
    from ghostkv.demo import Story, run_demo
    from ghostkv.terminal import Progress, writer

    with Progress() as progress:
        run_demo(out, Story(model, tokens, kv_budget), writer(progress), Console(), progress)


@app.command()
def generate(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    model: Model = "smollm2",
    residency: Residency = DEFAULT_RESIDENCY,
    kv_budget: Budget = "512MiB",
    max_tokens: MaxTokens = 0,
    min_tokens: Annotated[int, typer.Option(min=0, help="Shortest answer.")] = 0,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = None,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the text itself, without the chat template.")] = False,  # noqa: FBT002
    plan: Plan = None,
    trace: Annotated[Path | None, typer.Option(help="Write every step and segment to this file as JSON lines.")] = None,
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
    speculation: Speculation = DEFAULTS.speculation,
) -> None:
    """Answer one prompt."""
    from ghostkv.llm import LLM
    from ghostkv.request import Message
    from ghostkv.terminal import Progress, read_prompt, stream
    from ghostkv.trace import Footing, Trace

    text = read_prompt(prompt, file)
    record = Trace()
    with (
        Progress() as progress,
        LLM(
            model,
            residency=residency,
            kv_budget=kv_budget,
            dtype=dtype,
            kv_dtype=kv_dtype,
            threads=threads,
            speculation=speculation,
            announce=progress,
            on_step=record.steps.append,
        ) as llm,
    ):
        turn = llm.turn(
            text if raw else [Message("user", text)],
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=temperature,
            top_p=top_p,
            seed=seed,
            plan=explain.plan_option(plan),
        )
        stream(llm, turn, progress, record)
        footing = Footing.of(llm.worker.name, llm.worker.manifest, llm.worker.backend.capabilities())
    if trace is not None:
        record.write(trace, footing)


@app.command()
def chat(
    model: Model = "smollm2",
    residency: Residency = DEFAULT_RESIDENCY,
    kv_budget: Budget = "512MiB",
    max_tokens: MaxTokens = 0,
    temperature: Temperature = 0.8,
    top_p: TopP = 0.95,
    seed: Seed = None,
    dtype: Dtype = DEFAULTS.dtype,
    kv_dtype: KVDtype = DEFAULTS.kv_dtype,
    threads: Threads = DEFAULTS.threads,
    speculation: Speculation = DEFAULTS.speculation,
) -> None:
    """Talk with a model; an empty line or the end of input ends it."""
    from ghostkv.llm import LLM
    from ghostkv.request import Message
    from ghostkv.terminal import Progress, ask, stream

    history: list[Message] = []
    with (
        Progress() as progress,
        LLM(
            model,
            residency=residency,
            kv_budget=kv_budget,
            dtype=dtype,
            kv_dtype=kv_dtype,
            threads=threads,
            speculation=speculation,
            announce=progress,
        ) as llm,
    ):
        progress.done()
        while question := ask():
            history.append(Message("user", question))
            turn = llm.turn(history, max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
            try:
                history.append(Message("assistant", stream(llm, turn, progress)))
            except KeyboardInterrupt:
                history.pop()
                typer.echo("\n[stopped; the question is forgotten]", err=True)


def main() -> None:
    """The console script."""
    pause_collection()  # until a model is loaded
    app()
