"""Control vectors: the file, the sums, and the model against transformers with the addition done by hand."""

from __future__ import annotations

from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from checkpoints import write_hf_checkpoint
from ghostkv.errors import InvalidRequest, InvariantViolation, ModelError
from ghostkv.model.decoder import Decoder
from ghostkv.model.kv_tensors import KVTensors
from ghostkv.model.ops import Ops
from ghostkv.model.runner import ModelRunner, RunnerLimits
from ghostkv.model.steering import SHARE, Steerer, SteeringBank, learn
from ghostkv.model.threads import compute
from ghostkv.model.torch_ops import TorchOps
from ghostkv.request import NO_STEERING, GenerationState, SegmentRequest, Steering
from ghostkv.residency import policy
from ghostkv.step import Draw, Row, StepPlan
from model.lab import GREEDY, ROWS, SEQUENCES, Lab

LAYERS, HIDDEN, LAYER = 4, 128, 2
IDS = np.random.default_rng(0).integers(3, 260, 40).tolist()
LIMITS = RunnerLimits(ROWS, SEQUENCES, 2)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hf_checkpoint(tmp_path_factory.mktemp("steering") / "model", layers=LAYERS, hidden=HIDDEN)


@pytest.fixture(scope="module")
def lab(path: Path) -> Lab:
    return Lab(path, torch.float32)


@pytest.fixture(scope="module")
def bank(lab: Lab) -> SteeringBank:
    vectors = torch.randn(3, HIDDEN, generator=torch.Generator().manual_seed(3))
    return SteeringBank(lab.digest, ("calm", "formal", "last"), (LAYER, LAYER, LAYERS - 1), vectors)


def oracle(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()


@torch.inference_mode()
def by_hand(model: Any, ids: list[int], added: dict[int, torch.Tensor]) -> torch.Tensor:
    """Logits [tokens, vocabulary], block by block, `added` after the block it names."""
    positions = torch.arange(len(ids)).unsqueeze(0)
    mask = torch.full((len(ids), len(ids)), -torch.inf).triu(1)[None, None]
    hidden = model.model.embed_tokens(torch.tensor([ids]))
    rotary = model.model.rotary_emb(hidden, positions)
    for index, block in enumerate(model.model.layers):
        hidden = block(hidden, attention_mask=mask, position_ids=positions, position_embeddings=rotary)
        hidden = hidden + added.get(index, torch.zeros(HIDDEN))
    logits: torch.Tensor = model.lm_head(model.model.norm(hidden))[0]
    return logits


def last_logits(lab: Lab, ops: Ops, steerer: Steerer | None, *steerings: Steering) -> list[torch.Tensor]:
    """Logits of the last token, of the same prompt once per steering in one batch, prefilled in two chunks."""
    kv = KVTensors(lab.shape, 4 * len(steerings), torch.float32, torch.device("cpu"))
    runner = ModelRunner(lab.model, kv, ops, LIMITS, steerer)
    tables = [np.arange(4 * i, 4 * i + 4, dtype=np.int32) for i in range(len(steerings))]
    found: list[torch.Tensor] = []
    for start, end in ((0, 24), (24, len(IDS))):
        rows = [
            Row(str(i), tuple(IDS[start:end]), start, tables[i], (Draw(GREEDY, 0.0),), steering)
            for i, steering in enumerate(steerings)
        ]
        with compute(2):
            found = list(runner.forward(StepPlan(0, 0.0, tuple(rows))).clone())
    return found


@pytest.mark.parametrize("kind", ["cpu", "torch"])
def test_steered_logits_equal_those_added_by_hand(path: Path, lab: Lab, bank: SteeringBank, kind: str) -> None:
    model = oracle(path)
    ops: Ops = lab.ops if kind == "cpu" else TorchOps()
    calm, formal, last = bank.vectors
    cases = {
        Steering.of({"calm": 1.0}): {LAYER: calm},
        NO_STEERING: {},
        Steering.of({"calm": -0.5, "formal": 2.0}): {LAYER: -0.5 * calm + 2.0 * formal},
        Steering.of({"last": 1.5, "calm": 0.25}): {LAYER: 0.25 * calm, LAYERS - 1: 1.5 * last},
    }
    found = last_logits(lab, ops, Steerer(bank, lab.model), *cases)
    expected = [by_hand(model, IDS, added)[-1] for added in cases.values()]
    for ours, reference in zip(found, expected, strict=True):
        assert (ours - reference).abs().max() < 1e-4 * reference.abs().max()
    assert all((expected[i] - expected[1]).abs().max() > 0.1 for i in (0, 2, 3))  # the oracle can tell


def test_coefficient_zero_is_off_to_the_bit(lab: Lab, bank: SteeringBank) -> None:
    assert Steering.of({"calm": 0.0, "formal": 0.01}) == NO_STEERING
    (off,) = last_logits(lab, lab.ops, None, NO_STEERING)
    steered = NO_STEERING, Steering.of({"calm": 0.0}), Steering.of({"calm": 1.0})
    _, zero, other = last_logits(lab, lab.ops, Steerer(bank, lab.model), *steered)
    assert torch.equal(zero, off)
    assert not torch.equal(other, off)


ROTATION = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=torch.Generator().manual_seed(5))).Q


class Rotated(Decoder):
    """Says that its stream is rotated."""

    def to_residual(self, vectors: torch.Tensor) -> torch.Tensor:
        rotated: torch.Tensor = vectors @ ROTATION
        return rotated


def test_a_rotated_stream_takes_rotated_vectors_and_is_read_back_unrotated(lab: Lab, bank: SteeringBank) -> None:
    model = copy(lab.model)
    model.__class__ = Rotated
    total = Steerer(bank, model)._sum_of(Steering.of({"calm": 2.0}), LAYER)
    assert total is not None
    assert torch.allclose(total, 2.0 * bank.vectors[0] @ ROTATION, atol=1e-4)

    table = np.arange(4, dtype=np.int32)
    kv = KVTensors(lab.shape, 4, torch.float32, torch.device("cpu"))
    stream = lab.runner(4).residuals(IDS, LAYER, table)
    found = ModelRunner(model, kv, lab.ops, LIMITS).residuals(IDS, LAYER, table)
    assert torch.allclose(found @ ROTATION, stream, atol=1e-3)
    assert not torch.allclose(found, stream, atol=1e-1)


def test_round_trip(tmp_path: Path, bank: SteeringBank) -> None:
    file = tmp_path / "bank.safetensors"
    bank.save(file)
    found = SteeringBank.load(file, bank.model, hidden=HIDDEN, layers=LAYERS)
    assert (found.model, found.names, found.layers) == (bank.model, bank.names, bank.layers)
    assert torch.equal(found.vectors, bank.vectors)
    assert found.digest == bank.digest
    assert SteeringBank(bank.model, bank.names, (0, 0, 0), bank.vectors).digest != bank.digest


def test_a_foreign_bank_is_refused(tmp_path: Path, bank: SteeringBank) -> None:
    file = tmp_path / "bank.safetensors"
    bank.save(file)
    with pytest.raises(ModelError, match=r"bank\.safetensors.*learned on model " + bank.model[:12]):
        SteeringBank.load(file, "0" * 32, hidden=HIDDEN, layers=LAYERS)


@pytest.mark.parametrize(
    "damage",
    [
        {"names": '["calm", "formal"]'},
        {"names": '["calm", "calm", "last"]'},
        {"layers": "[1, 2]"},
        {"layers": "[1, 2, 4]"},
        {"names": "calm"},
        {"vectors": torch.full((3, HIDDEN), torch.nan)},
        {"vectors": torch.zeros(3, HIDDEN + 1)},
        {"vectors": None},
    ],
    ids=str,
)
def test_a_damaged_bank_is_refused_by_file(tmp_path: Path, bank: SteeringBank, damage: dict[str, Any]) -> None:
    parts = {"model": bank.model, "names": '["calm", "formal", "last"]', "layers": "[2, 2, 3]", "vectors": bank.vectors}
    parts |= damage
    vectors = parts.pop("vectors")
    file = tmp_path / "bank.safetensors"
    save_file({} if vectors is None else {"vectors": vectors}, file, parts)
    with pytest.raises(ModelError, match=r"bank\.safetensors"):
        SteeringBank.load(file, bank.model, hidden=HIDDEN, layers=LAYERS)


def test_something_else_is_no_bank(tmp_path: Path) -> None:
    file = tmp_path / "text"
    with pytest.raises(ModelError, match="text: not a readable steering bank"):
        SteeringBank.load(file, "", hidden=HIDDEN, layers=LAYERS)
    file.write_text("no tensors")
    with pytest.raises(ModelError, match="text: not a readable steering bank"):
        SteeringBank.load(file, "", hidden=HIDDEN, layers=LAYERS)


def test_residuals_and_learning_against_transformers(path: Path, lab: Lab) -> None:
    model, random = oracle(path), np.random.default_rng(2)
    texts = [random.integers(3, 260, length).tolist() for length in (17, 250, 30, 40)]  # one longer than a step
    starts = [1, 5, 3, 10]
    with torch.inference_mode():
        hidden = [model(torch.tensor([ids]), output_hidden_states=True).hidden_states[LAYER + 1][0] for ids in texts]
    runner = lab.runner(32)
    table = np.arange(16, dtype=np.int32)
    for ids, expected in zip(texts, hidden, strict=True):
        assert (runner.residuals(ids, LAYER, table) - expected).abs().max() < 1e-4 * expected.abs().max()

    sides = [torch.cat([hidden[i][starts[i] :] for i in pair]) for pair in ((0, 1), (2, 3))]
    difference = sides[0].mean(0) - sides[1].mean(0)
    expected = difference / difference.norm() * SHARE * torch.cat(sides).norm(dim=1).mean()
    examples = list(zip(texts, starts, strict=True))
    assert torch.allclose(learn(runner, examples[:2], examples[2:], LAYER), expected, atol=1e-4)


def test_there_is_no_direction_from_a_text_to_itself(lab: Lab) -> None:
    with pytest.raises(ModelError, match="same mean"):
        learn(lab.runner(8), [(IDS, 4)], [(IDS, 4)], LAYER)


def test_a_name_that_nobody_refused_is_a_fault(lab: Lab, bank: SteeringBank) -> None:
    with pytest.raises(InvariantViolation, match="sad"):
        last_logits(lab, lab.ops, Steerer(bank, lab.model), Steering.of({"sad": 1.0}))


@pytest.mark.parametrize("value", [4.0, -4.01, float("nan"), float("inf")])
def test_coefficients_out_of_range(value: float) -> None:
    with pytest.raises(InvalidRequest, match=r"calm.*between -4 and 3\.96875") as refused:
        Steering.of({"calm": value})
    assert refused.value.param == "steering"


def test_a_coefficient_is_one_signed_byte() -> None:
    assert Steering.of({"b": -4, "a": 127 / 32, "c": 0.5}).parts == (("a", 127), ("b", -128), ("c", 16))


def test_domains_differ_where_tenant_or_steering_do() -> None:
    def domain(tenant: str, steering: dict[str, float]) -> str:
        state = GenerationState()
        return SegmentRequest("r", (1,), GREEDY, state, policy("full"), 1, tenant, Steering.of(steering)).domain

    plain = domain("", {})
    hostile = [plain, domain("a", {}), "6:1:a+32", "1:a+32", ":", "+32,1:b+32", "1:a+32,1:b+32"]
    steerings: list[dict[str, float]] = [{}, {"a": 1}, {"a": -1}, {"a": 2}, {"a": 1, "b": 1}, {"a+32,1:b": 1}, {"b": 1}]
    domains = [domain(tenant, steering) for tenant in ["", "a", *hostile] for steering in steerings]
    assert len(set(domains)) == len({"", "a", *hostile}) * len(steerings)
