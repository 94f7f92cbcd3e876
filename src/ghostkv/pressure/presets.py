"""Cells by name: the tables of the TGP article, longer outputs, a fair share, and small ones to try the command."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import POOL_STEP, Cell, Job, pool_of

_TOKEN_BYTES = 23_040
"""KV of a token of SmolLM2-135M in bfloat16. Pools are kept in tokens, so that the load is the same for every model."""

PROMPT = 48
STORY = (
    "Write a science fiction story about an artificial intelligence that develops its own emotions while helping to "
    "colonize Mars. Begin with the AI's first awakening."
)
"""The prompt of the article's table 2, word for word."""

_LONG_S = 3600.0


def within(mib: int) -> int:
    """Tokens, in whole steps, of so many MiB of SmolLM2-135M's KV: 2,176 for 48."""
    return mib * 2**20 // _TOKEN_BYTES // POOL_STEP * POOL_STEP


def equal(preset: str, users: int, output: int, pool_tokens: int, *, prompt: int = PROMPT, name: str = "") -> Cell:
    """Users that ask for the same length at the same moment."""
    cell = Cell(preset, name, tuple(Job(prompt, output) for _ in range(users)), pool_tokens)
    about = {"users": users, "prompt": prompt, "output": output}
    return replace(cell, name=name or f"{users} x {output} at {cell.pressure:.3g}x", about=about)


def table4() -> list[Cell]:
    """Users by output by pressure. All engines run the largest load, the leading ones everything."""
    cells = []
    for users in (128, 192, 256):
        for output in (192, 250):
            for pressure in (0.25, 1.0, 4.0, 16.0):
                demand = equal("table4", users, output, 32).demand_tokens
                cell = equal(
                    "table4", users, output, pool_of(demand / pressure), name=f"{users} x {output} at {pressure:g}x"
                )
                about = {**cell.about, "pressure": pressure}
                cells.append(replace(cell, about=about, all_engines=(users, output) == (256, 250)))
    return cells


def long_outputs() -> list[Cell]:
    """Outputs of many segments in 48 MiB. Nobody leaves within the hour, so that the rate is known at the end."""
    pool = within(48)
    cells = [equal("long", 64, output, pool, name=f"64 x {output:,} in 48 MiB") for output in (1000, 4000)]
    return [replace(cell, timeout_s=_LONG_S) for cell in cells]


def story() -> list[Cell]:
    """One story of 4,500 tokens: 30 segments of 150 (tables 2 and 3). KV is ample, so what each holds is compared."""
    job = Job(0, 4500, text=STORY)  # its length is counted by the model's own tokenizer
    about = {"users": 1, "prompt": 0, "output": 4500}
    return [Cell("story", "a story of 4,500 tokens", (job,), pool_of(5600), timeout_s=_LONG_S, about=about)]


def fairness() -> list[Cell]:
    """One tenant's short chats: alone, and beside 200 long jobs of another tenant with ample and with little memory."""
    chats = tuple(Job(24, 32, 3.0 if index else 6.0, "chat", index - 1 if index else None) for index in range(12))
    long = tuple(Job(PROMPT, 1000, 0.0, "batch", background=True) for _ in range(200))
    ample = pool_of(200 * (PROMPT + 1000) + 2048)
    about = {"users": 200, "prompt": PROMPT, "output": 1000}
    return [
        Cell("fairness", "chats alone", chats, ample, about={**about, "users": 0}),
        Cell("fairness", "beside 200 jobs, ample", chats + long, ample, about=about),
        Cell("fairness", "beside 200 jobs, 48 MiB", chats + long, within(48), about=about),
    ]


def short() -> list[Cell]:
    """Eight users with 32 tokens each in 16 MiB: does an engine run at all?"""
    return [equal("short", 8, 32, within(16), name="8 x 32 in 16 MiB")]


def tiny() -> list[Cell]:
    """For tests, with a small random model."""
    return [equal("tiny", 4, 24, 640, prompt=20), equal("tiny", 6, 200, 640, prompt=20)]


PRESETS: Mapping[str, Callable[[], list[Cell]]] = {
    "tiny": tiny,
    "short": short,
    "table4": table4,
    "long": long_outputs,
    "story": story,
    "fairness": fairness,
}


def preset(name: str) -> list[Cell]:
    """Raises ConfigError for an unknown name."""
    if name not in PRESETS:
        raise ConfigError(f"there is no preset {name!r}: choose among {', '.join(PRESETS)}, arrivals")
    return PRESETS[name]()
