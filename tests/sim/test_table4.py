"""The source's formulas, and its Table 4 at its own size on the machines that the repository describes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ghostkv.cli import app
from ghostkv.errors import ConfigError
from ghostkv.sim.hardware import read_hardware
from ghostkv.sim.memory import Memory, read_memory

HARDWARE = Path(__file__).parents[2] / "benchmarks" / "hardware"
SMALL = Memory(1e9, 0.9, 3e8, 1e8, layers=30, kv_heads=3, head_size=64, kv_bytes=2, context=8192)


def test_the_formulas() -> None:
    assert SMALL.token_bytes == 23_040  # F1: what the engine counts for SmolLM2
    assert SMALL.whole(4, 1000) == 4e8 + 4 * 1000 * 23_040
    assert SMALL.segmented(4, 10, 300, 4096) == 4e8 + 4 * 300 * 23_040 + 10 * 4096
    assert SMALL.blocks == int(5e8 / (16 * 23_040))
    fit = SMALL.prompt_to_fill(8, 250)
    assert 8 * (fit + 250) > SMALL.blocks * 16 >= 8 * (fit - 1 + 250)


def test_a_machine_without_room_for_kv() -> None:
    full = Memory(4e8, 1.0, 3e8, 1e8, layers=30, kv_heads=3, head_size=64, kv_bytes=2, context=8192)
    with pytest.raises(ConfigError, match="no memory for KV"):
        _ = full.blocks


@pytest.mark.parametrize("file", sorted(HARDWARE.glob("*.json")), ids=lambda file: file.stem)
def test_the_described_machines(file: Path) -> None:
    memory, times = read_memory(file), read_hardware(file)
    assert memory.token_bytes == 327_680
    assert times.row > 0 and times.prefill > 0
    assert 0.25 * memory.blocks * 16 > 256 * (100 + 250)  # Table 4's largest cell, with prompts of 100 tokens


def test_a_hardware_file_without_memory(tmp_path: Path) -> None:
    file = tmp_path / "costs.json"
    file.write_text('{"base": 0.02, "row": 0.001, "prefill": 0.0005, "read": 0}')
    with pytest.raises(ConfigError, match="says nothing of a machine's memory"):
        read_memory(file)
    ran = CliRunner().invoke(app, ["sim", "--table4"])
    assert ran.exit_code == 2 and "--hardware" in ran.output


def test_the_command_says_how_far_memory_binds(tmp_path: Path) -> None:
    """On a machine a sixteenth as large, so that it takes seconds: the cells are bound there."""
    told = json.loads((HARDWARE / "mi300x_qwen2.5_72b_4bit_peak.json").read_text(encoding="utf-8"))
    told["memory"]["total"] = 55e9
    file = tmp_path / "small.json"
    file.write_text(json.dumps(told))
    ran = CliRunner().invoke(app, ["sim", "--table4", "--hardware", str(file), "--prompt", "48"])
    assert ran.exit_code == 0, ran.output
    assert ran.output.count("by F1 and F2 memory binds") == 6 and "simulated" in ran.output
