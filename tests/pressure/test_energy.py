"""Energy counters, also when they begin again."""

from __future__ import annotations

from pathlib import Path

from ghostkv.pressure.energy import joules, read_counters


def package(folder: Path, index: int, now: int, most: int = 1_000_000_000) -> None:
    place = folder / f"intel-rapl:{index}"
    place.mkdir(exist_ok=True)
    (place / "energy_uj").write_text(f"{now}\n")
    (place / "max_energy_range_uj").write_text(f"{most - 1}\n")


def test_packages_add_up_and_a_counter_may_begin_again(tmp_path: Path) -> None:
    package(tmp_path, 0, 2_000_000)
    package(tmp_path, 1, 999_000_000)
    (tmp_path / "intel-rapl:0:0").mkdir()  # a part of package 0
    before = read_counters(tmp_path)
    package(tmp_path, 0, 5_000_000)
    package(tmp_path, 1, 4_000_000)
    assert joules(before, read_counters(tmp_path)) == 3.0 + 5.0


def test_without_counters_there_is_no_number(tmp_path: Path) -> None:
    assert joules(read_counters(tmp_path), read_counters(tmp_path)) is None
