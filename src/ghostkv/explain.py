"""The command `explain`, which shows the plan that a prompt asks for, and how commands take a plan."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console

from ghostkv.errors import ConfigError
from ghostkv.protocol.plan import Plan, topological_segment


def explain(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; - reads it from standard input.")] = None,
    file: Annotated[Path | None, typer.Option(help="Read the prompt from a file.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A JSON list of parts instead of what the prompt says.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the plan's graph into this file.")] = None,
) -> None:
    """Show the parts that a prompt asks for, and which of them wait for which."""
    from ghostkv.diagram import plan_svg, plan_tree
    from ghostkv.terminal import read_prompt

    found = read_plan(plan) if plan is not None else topological_segment(read_prompt(prompt, file), "auto")
    Console().print(plan_tree(found))
    if svg is not None:
        try:
            svg.write_text(plan_svg(found), encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"{svg}: cannot be written: {error.strerror or error}") from error


def read_plan(path: Path) -> Plan:
    """The plan in a JSON file: a list of objects with title, and where wanted goal, target and depends_on.

    Raises ConfigError for a file that holds no such list, InvalidRequest naming the field for a plan that is wrong.
    """
    from ghostkv.terminal import read_prompt

    try:
        items = json.loads(read_prompt(None, path))
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not JSON: {error}") from error
    if not isinstance(items, list):
        raise ConfigError(f"{path}: not a list of parts")
    return topological_segment("", items)


def plan_option(value: str | None) -> Plan | Literal["auto", "model"] | None:
    """What --plan means: "auto", "model", or the plan in a file."""
    if value is None or value == "auto" or value == "model":
        return value  # type: ignore[return-value]
    return read_plan(Path(value))
