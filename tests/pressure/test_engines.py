"""How each engine is started and asked: equal KV bytes, equal lengths, and what its metrics tell."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ghostkv.errors import ConfigError
from ghostkv.pressure.cells import Cell, Job
from ghostkv.pressure.engines import Engine, Model, Sampling, Seat
from ghostkv.pressure.ghost import Ghost
from ghostkv.pressure.names import Places, engine
from ghostkv.pressure.peers import LlamaServer, Vllm
from ghostkv.pressure.presets import preset

MODEL = Model("model", Path("model.gguf"), 23_040, 8192)


@pytest.fixture
def places(tmp_path: Path) -> Places:
    for program in ("vllm/bin/python", "llama/build/bin/llama-server"):
        (tmp_path / program).parent.mkdir(parents=True)
        (tmp_path / program).touch()
    return Places(tmp_path / "vllm", lambda: tmp_path / "hf", tmp_path / "llama", Path("model-Q8_0.gguf"))


def seat(cell: Cell, folder: Path = Path(), wave: int = 0) -> Seat:
    return Seat(cell, MODEL, folder, wave)


def option(command: tuple[str, ...], name: str) -> str:
    return command[command.index(name) + 1]


LONG = preset("long")[0]  # 64 x 1,000 tokens in 2,176 tokens
FAIR = preset("fairness")[-1]


@pytest.mark.parametrize("name", ["auto", "full:int8", "segment:int8:int8", "sink_window", "vllm"])
def test_kv_bytes_are_equal(name: str, places: Places) -> None:
    [launch] = engine(name, places).launches(seat(LONG))
    assert str(2176 * 23_040) in launch.command


@pytest.mark.parametrize("shift", [False, True])
def test_llama_slots_never_hold_more_than_the_pool(shift: bool, places: Places) -> None:
    for name in ("table4", "long", "story", "short", "fairness"):
        for cell in preset(name):
            server = LlamaServer(places.llama, places.gguf, "Q8_0", shift)
            [launch] = server.launches(seat(cell))
            tokens, slots = int(option(launch.command, "-c")), int(option(launch.command, "-np"))
            assert tokens <= cell.pool_tokens
            assert tokens % slots == 0
            assert tokens // slots % 256 == 0
            if not shift and cell.longest <= cell.pool_tokens // 256 * 256:
                assert tokens // slots >= cell.longest
    [whole] = LlamaServer(places.llama, places.gguf, "Q8_0").launches(seat(LONG))
    [shifted] = LlamaServer(places.llama, places.gguf, "Q8_0", shift=True).launches(seat(LONG))
    assert (option(whole.command, "-np"), option(shifted.command, "-np")) == ("1", "8")


def test_one_wave_for_all(places: Places) -> None:
    roomy = replace(LONG, pool_tokens=2**20)
    names = {"auto": "--max-sequences", "vllm": "--max-num-seqs", "llama": "-np"}
    for name, wanted in names.items():
        [launch] = engine(name, places).launches(seat(roomy, wave=12))
        assert option(launch.command, wanted) == "12"
        assert engine(name, places).settings(seat(roomy, wave=12)) != engine(name, places).settings(seat(roomy))


def test_vllm_is_started_with_a_context_that_its_pool_holds(places: Places) -> None:
    for cell, context in ((LONG, "2144"), (preset("table4")[0], "8192")):
        [launch] = engine("vllm", places).launches(seat(cell))
        assert option(launch.command, "--max-model-len") == context


def test_our_loop_stands_in_front_of_the_engine_that_it_drives(places: Places) -> None:
    below, ours = engine("segment-over-vllm", places).launches(seat(LONG))
    assert option(ours.command, "--upstream") == f"http://127.0.0.1:{below.port}/v1"
    assert below.port != ours.port


def test_tenants_have_keys_where_there_are_several(places: Places, tmp_path: Path) -> None:
    ghost = Ghost()
    assert ghost.keys(seat(LONG)) == {}
    [launch] = ghost.launches(seat(LONG, tmp_path))
    assert "--api-keys" not in launch.command
    keys = ghost.keys(seat(FAIR))
    assert len(set(keys.values())) == 3
    [launch] = ghost.launches(seat(FAIR, tmp_path))
    from ghostkv.server.key_file import read_access

    access = read_access(Path(option(launch.command, "--api-keys")), {})
    assert {(key.tenant.name, key.tenant.admin) for key in access.keys} == {
        ("watch", True),
        ("chat", False),
        ("batch", False),
    }


def test_every_engine_is_asked_for_the_same(places: Places) -> None:
    job = Job(40, 100)
    asked = Sampling().fields(job, "text")
    for name in ("auto", "vllm", "llama", "llama-shift", "segment-over-vllm"):
        body = engine(name, places).body(asked)
        for field in ("prompt", "max_tokens", "ignore_eos", "temperature", "top_p", "stream"):
            assert body[field] == asked[field]
        assert body["stream_options"]["include_usage"] is True
        assert "seed" not in body
    assert Sampling(seeded=True).fields(job, "text")["seed"] == Sampling(seeded=True).fields(job, "other")["seed"]


def test_metrics_become_gauges_and_counts() -> None:
    vllm = Vllm(Path(), Path())
    assert vllm.gauges({"vllm:kv_cache_usage_perc": 0.5}, seat(LONG)).live == 0.5 * 2176 * 23_040
    assert vllm.gauges({}, seat(LONG)).live is None
    before, after = {"vllm:num_preemptions_total": 2.0}, {"vllm:num_preemptions_total": 5.0}
    assert vllm.counts(before, after, seat(LONG)) == {"preemptions": 3.0}
    flush = 'ghostkv_boundaries_total{decision="flush"}'
    assert Ghost().counts({"other": 1.0}, {flush: 4.0}, seat(LONG)) == {"flushes": 4.0}
    assert Ghost().counts({}, {flush: 4.0}, seat(LONG)) == {}  # the first reading failed: nothing is known


def test_names() -> None:
    nowhere = Places(Path("a"), lambda: Path("b"), Path("c"), Path("model-Q8_0.gguf"))
    found: list[Engine] = [engine(name, nowhere) for name in ("auto:int8:int8", "full", "llama-shift")]
    assert [each.name for each in found] == [
        "ghostkv auto int8 kv int8",
        "ghostkv full",
        "llama.cpp Q8_0 context shift",
    ]
    assert engine("http://127.0.0.1:9000", nowhere).attached is not None
    for wrong in ("fast", "auto:int4", "auto:int8:int8:1", "vllm:int8", "http://example.org:80", "http://127.0.0.1"):
        with pytest.raises(ConfigError):
            engine(wrong, nowhere)
    for absent in ("vllm", "llama"):
        with pytest.raises(ConfigError, match="benchmarks/"):
            engine(absent, nowhere).launches(seat(LONG))
