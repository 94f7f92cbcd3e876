"""Prompts have just so many tokens, and are the same each time."""

from __future__ import annotations

import pytest

from fakes import byte_tokenizer
from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.presets import PRESETS, preset
from ghostkv.pressure.prompts import counted, with_prompts

TOKENIZER = byte_tokenizer()


def count(text: str) -> int:
    return len(TOKENIZER.encode(text))


def test_each_prompt_has_its_length_and_is_another() -> None:
    cell = Cell("test", "test", tuple(Job(length, 8) for length in range(20, 320, 7)), 64)
    prompts = with_prompts(cell, count)
    assert [count(prompt) for prompt in prompts] == [job.prompt for job in cell.jobs]
    assert len(set(prompts)) == len(prompts)
    assert prompts == with_prompts(cell, count)
    assert prompts != with_prompts(Cell("test", "test", cell.jobs, 64, seed=1), count)


def test_equal_jobs_get_equal_prompts_whatever_the_pool() -> None:
    jobs = (Job(40, 8), Job(40, 8))
    assert with_prompts(Cell("a", "a", jobs, 64), count) == with_prompts(Cell("b", "b", jobs, 1024), count)


def test_a_given_text_is_the_prompt_and_its_length_is_counted() -> None:
    cell = counted(Cell("test", "test", (Job(0, 8, text="Once upon a time"),), 64), count)
    assert cell.jobs[0].prompt == count("Once upon a time")
    assert with_prompts(cell, count) == ["Once upon a time"]


def test_too_short_a_prompt_is_refused() -> None:
    with pytest.raises(ConfigError, match="3 tokens is too short"):
        with_prompts(Cell("test", "test", (Job(3, 8),), 64), count)


def test_presets_have_the_loads_that_they_name() -> None:
    grid = preset("table4")
    assert {(cell.about["users"], cell.about["output"]) for cell in grid} == {
        (users, output) for users in (128, 192, 256) for output in (192, 250)
    }
    for cell in grid:
        assert len(cell.jobs) == cell.about["users"]
        assert cell.pressure == pytest.approx(cell.about["pressure"], rel=0.02)
    assert [cell.name for cell in grid if cell.all_engines] == [f"256 x 250 at {p}x" for p in ("0.25", "1", "4", "16")]
    for name in PRESETS:
        assert all(cell.pool_tokens % 32 == 0 for cell in preset(name))
    assert {cell.pool_tokens for cell in preset("long")} == {2176}  # 48 MiB of SmolLM2's KV


def test_an_unknown_preset_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="'table9'"):
        preset("table9")
