"""`ghostkv demo`: a story longer than its KV budget, on a real model, with the trace to prove it.

The prompt is that of the TGP article's first experiment.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from ghostkv.errors import ConfigError, EngineFault
from ghostkv.llm import LLM
from ghostkv.request import Message
from ghostkv.session.turn import Finished, Output, SegmentRecord
from ghostkv.tables import segment_table, size
from ghostkv.trace import Footing, Trace

PROMPT = (
    "Write a science fiction story about an artificial intelligence that develops its own emotions while helping to "
    "colonize Mars. Begin with the AI's first awakening."
)


@dataclass(frozen=True, slots=True)
class Story:
    """What the demo asks for. Settings and seed were chosen among 24: a model of 135 million parameters often loops."""

    model: str = "smollm2"
    tokens: int = 1500
    kv_budget: str = "12MiB"
    residency: str = "segment"
    temperature: float = 0.7
    top_p: float = 0.9
    repetition_penalty: float = 1.05
    seed: int = 5


def run_demo(
    out: Path, story: Story, write: Callable[[str], None], console: Console, announce: Callable[[str], None]
) -> None:
    """Stream the story to `write`, print the table of segments, and leave trace.jsonl and memory.png in `out`.

    Raises InvariantViolation if live KV exceeded the budget in any step.
    """
    try:
        from ghostkv.plot import plot_memory  # an extra, whose absence should show before the work
    except ImportError as error:
        raise ConfigError(f"the demo draws a plot: pip install 'ghostkv[plot]' ({error})") from error
    trace = Trace()
    with LLM(
        story.model,
        kv_budget=story.kv_budget,
        residency=story.residency,
        announce=announce,
        on_step=trace.steps.append,
    ) as llm:
        footing = Footing.of(llm.worker.name, llm.worker.manifest, llm.worker.backend.capabilities())
        started = time.perf_counter()
        end = _stream(llm, story, write, trace)
        wall_s = time.perf_counter() - started
    trace.check_budget(footing)
    trace.write(out / "trace.jsonl", footing)
    plot_memory(out / "memory.png", trace, footing, end.prompt_tokens)
    _report(console, out, trace, footing, end, wall_s)


def _stream(llm: LLM, story: Story, write: Callable[[str], None], trace: Trace) -> Finished:
    turn = llm.turn(
        [Message("user", PROMPT)],
        max_tokens=story.tokens,
        min_tokens=story.tokens,  # no token that ends the answer can be chosen before
        temperature=story.temperature,
        top_p=story.top_p,
        repetition_penalty=story.repetition_penalty,
        seed=story.seed,
    )
    for event in llm.events(turn):
        if isinstance(event, Output):
            write(event.text)
        elif isinstance(event, SegmentRecord):
            trace.segments.append(event)
        else:
            write("\n\n")
            return event
    raise EngineFault("the story has no end")


def _report(console: Console, out: Path, trace: Trace, footing: Footing, end: Finished, wall_s: float) -> None:
    decode_s = sum(step.seconds for step in trace.steps)
    unsegmented = end.prompt_tokens + end.completion_tokens
    console.print(segment_table(trace.segments))
    console.print(
        f"{end.completion_tokens} tokens in {len(trace.segments)} segments: "
        f"{end.completion_tokens / wall_s:.1f} tokens/s over {wall_s:.1f} s of wall time, "
        f"{end.completion_tokens / decode_s:.1f} tokens/s over the {decode_s:.1f} s of its {len(trace.steps)} steps"
    )
    console.print(
        f"live KV was at most {size(trace.peak_live_bytes(footing))} in each of {len(trace.steps)} steps, within the "
        f"budget of {size(footing.kv_budget)}; unsegmented it needs {unsegmented} tokens, "
        f"{size(unsegmented * footing.kv_bytes_per_token)}"
    )
    console.print(f"wrote {out / 'trace.jsonl'} and {out / 'memory.png'}")
