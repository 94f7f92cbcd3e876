"""Options that several commands share: name, type and help, written once."""

from __future__ import annotations

from typing import Annotated

import typer

from ghostkv.config import EngineConfig, ServerConfig

DEFAULTS = EngineConfig()
SERVER_DEFAULTS = ServerConfig()

Model = Annotated[str, typer.Option(help="A known name (pulled if absent), a .gguf file or a Hugging Face directory.")]
Plan = Annotated[str | None, typer.Option(help="auto, model, or a JSON file: answer in parts.")]
Residency = Annotated[str, typer.Option(help="Residency policy: auto, full, segment or sink_window.")]
Budget = Annotated[str, typer.Option(help="Size of the KV pool, e.g. 96MiB.")]
Dtype = Annotated[str, typer.Option(help="bfloat16, float32 or int8.")]
KVDtype = Annotated[str, typer.Option(help="Of the KV pool: auto (as --dtype says), or int8 for 1.9 x the tokens.")]
Threads = Annotated[int, typer.Option(min=0, help="Compute threads; 0: every core.")]
Speculation = Annotated[str, typer.Option(help="lookup: guess tokens where that is faster, same output; or off.")]
Temperature = Annotated[float, typer.Option(help="0: always the most probable token.")]
TopP = Annotated[float, typer.Option(help="Choose among the most probable tokens that make up this mass.")]
Seed = Annotated[int | None, typer.Option(help="Makes the answer repeatable; absent: drawn at random.")]
MaxTokens = Annotated[int, typer.Option(min=0, help="Longest answer; 0: what the context leaves, 4096 at most.")]
