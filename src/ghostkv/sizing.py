"""`ghostkv size`: what fits on a machine with and without segments, by formula. No weights are read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from ghostkv.config import parse_bytes
from ghostkv.errors import ConfigError

if TYPE_CHECKING:
    from ghostkv.model.outline import Outline
    from ghostkv.sim.memory import Memory
    from ghostkv.sim.size import Ask, Fit

_BITS = {"float32": 32.0, "bfloat16": 16.0, "int8": 8.0, "4bit": 4 + 20 / 128}
"""Of a weight inside layers; 4bit: with a scale of 16 bits and a zero of 4 for 128 of them, as AWQ and GPTQ have it."""
_WHOLE_BITS = 16.0  # of embeddings and head, where layers have fewer
_GIGA = 1e9


def size(
    memory: Annotated[str, typer.Option(metavar="SIZE", help="Of the device, e.g. 192GB.")],
    model: Annotated[
        str | None,
        typer.Option(
            help="A Hugging Face directory or config.json, org/name of the Hub, a .gguf file or a known name."
        ),
    ] = None,
    users: Annotated[int, typer.Option(min=1, help="Whose answers are decoded at a time.")] = 1,
    tokens: Annotated[int, typer.Option(min=1, help="Of each answer.")] = 1000,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 48,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Whose payload is held. Default: one for each user.")
    ] = None,
    payload: Annotated[str, typer.Option(metavar="SIZE", help="Of a session between its segments, at most.")] = "16KiB",
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="FORMAT|SIZE",
            help=f"{', '.join(_BITS)}, or their bytes. Default: as the files are, else bfloat16.",
        ),
    ] = None,
    kv_dtype: Annotated[str, typer.Option(help="auto: 16 bits a number; int8: 8, and a scale for each head.")] = "auto",
    share: Annotated[float, typer.Option(help="Of the memory that the engine may use, 0 to 1.")] = 0.9,
    runtime: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Buffers beside weights and KV. Default: 2 % of the memory.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Instead of --model: layers with keys and values.")] = None,
    kv_heads: Annotated[int | None, typer.Option(min=1, help="Likewise: heads of keys.")] = None,
    head_size: Annotated[int | None, typer.Option(min=1, help="Likewise: numbers of a head.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one object instead of the table.")] = False,  # noqa: FBT002
) -> None:
    """Print what fits with whole histories and with segments, by the formulas F1 to F3, and whether memory binds."""
    from ghostkv.sim.memory import Memory
    from ghostkv.sim.size import Ask, fit
    from ghostkv.terminal import Progress

    total = parse_bytes(memory)
    if not 0 < share <= 1:
        raise ConfigError(f"--share must be above 0 and at most 1, not {share}")
    if kv_dtype not in ("auto", "int8"):
        raise ConfigError(f"--kv-dtype {kv_dtype!r}: auto or int8")
    with Progress() as progress:
        found = _outline(model, layers, kv_heads, head_size, progress)
    machine = Memory(
        total=total,
        share=share,
        weights=_weight_bytes(found, weights),
        runtime=0.02 * total if runtime is None else parse_bytes(runtime),
        layers=found.layers,
        kv_heads=found.kv_heads,
        head_size=found.head_size,
        kv_bytes=2.0 if kv_dtype == "auto" else 1 + 2 / found.head_size,
        context=found.context,
    )
    ask = Ask(users, prompt, tokens, parse_bytes(payload), sessions or users)
    fits = fit(machine, ask)
    if as_json:
        told = asdict(machine) | {"token_bytes": machine.token_bytes, "model": found.name}
        told |= asdict(ask) | {"whole_tokens": ask.whole, "segment_tokens": ask.segment}
        print(json.dumps(told | asdict(fits) | {"bound": fits.bound, "says": _verdict(machine, ask, fits)}))
        return
    known = f", context {found.context:,}" if found.context else ""
    print(f"{found.name}: {found.layers} layers x {found.kv_heads} heads of keys x {found.head_size}{known}")
    print(f"{total / _GIGA:.2f} GB, {share:.0%} of it used; {users:,} users x ({prompt:,} + {tokens:,}) tokens")
    Console().print(_table(machine, ask, fits))
    for line in _verdict(machine, ask, fits):
        print(line)


def _outline(
    model: str | None,
    layers: int | None,
    kv_heads: int | None,
    head_size: int | None,
    progress: Callable[[str], None],
) -> Outline:
    from ghostkv.model.outline import Outline, outline

    given = {"--layers": layers, "--kv-heads": kv_heads, "--head-size": head_size}
    if model is None:
        if layers is None or kv_heads is None or head_size is None:
            missing = ", ".join(name for name, value in given.items() if value is None)
            raise ConfigError(f"say --model, or --layers, --kv-heads and --head-size: there is no {missing}")
        return Outline("given by numbers", layers, kv_heads, head_size, context=0)
    if named := [name for name, value in given.items() if value is not None]:
        raise ConfigError(f"--model says what {', '.join(named)} would say: give one of both")
    return outline(model, progress)


def _weight_bytes(found: Outline, weights: str | None) -> float:
    """By the given format or size, else what is stored, else 16 bits each."""
    if weights is not None and weights not in _BITS:
        try:
            return parse_bytes(weights)
        except ConfigError as error:
            raise ConfigError(f"--weights {weights!r}: one of {', '.join(_BITS)}, or a size such as 41GB") from error
    if weights is None and found.stored_bytes is not None:
        return found.stored_bytes
    if found.weights is None:
        raise ConfigError(
            f"{found.name}: nothing here says how many weights it has: give their bytes as --weights SIZE, e.g. "
            f"--weights 41GB"
        )
    bits = _BITS["bfloat16"] if weights is None else _BITS[weights]
    if weights is None and found.bits is not None:
        bits = found.bits
    return (found.weights.matrices * bits + found.weights.others * max(bits, _WHOLE_BITS)) / 8


def _table(machine: Memory, ask: Ask, fits: Fit) -> Table:
    table = Table()
    for name in ("", "whole histories (F2)", "segments (F3)"):
        table.add_column(name, justify="right" if name else "left")
    both = f"{machine.weights / _GIGA:.2f} GB", f"{machine.runtime / _GIGA:.2f} GB"
    for name, value in zip(("weights", "buffers"), both, strict=True):
        table.add_row(name, value, value)
    table.add_row("KV of a token (F1)", *[f"{machine.token_bytes:,.0f} B"] * 2)
    table.add_row("pool", *[f"{fits.pool:,} tokens"] * 2)
    table.add_row("KV of a user, at most", f"{ask.whole:,} tokens", f"{ask.segment:,} tokens")
    table.add_row("payload of a session", "0 B", f"{ask.payload:,} B")
    table.add_row("all users", f"{fits.whole_bytes / _GIGA:.2f} GB", f"{fits.segment_bytes / _GIGA:.2f} GB")
    table.add_row("demand / pool", f"{fits.demand:.3f}", f"{fits.segment_demand:.3f}")
    table.add_row("users that fit", f"{fits.whole_users:,}", f"{fits.segment_users:,}")
    return table


def _verdict(machine: Memory, ask: Ask, fits: Fit) -> list[str]:
    """What the numbers say, in sentences."""
    says = []
    if machine.context and ask.prompt + ask.tokens > machine.context:
        says.append(
            f"{ask.prompt} + {ask.tokens} tokens are more than the model's context of {machine.context}: a whole "
            "history cannot be had at any size of memory."
        )
    if not fits.bound:
        return [
            *says,
            f"Memory does not bind: {fits.whole_users} users fit with whole histories, so segments gain nothing here. "
            f"It binds {ask.users} users from answers of {fits.longest + 1} tokens on, by F1 and F2.",
        ]
    says.append(f"Memory binds: {ask.users} users with whole histories want {fits.demand:.2f} times the pool.")
    if fits.segment_demand <= 1:
        says.append(f"With segments all fit ({fits.segment_demand:.2f} of the pool).")
    else:
        says.append(
            f"With segments {fits.segment_users} fit at a time, and {fits.whole_users} without; the others wait."
        )
    return says
