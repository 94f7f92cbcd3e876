"""How near a decode step comes to what the machine can do: the roofline model (Williams 2009)."""

from __future__ import annotations

from dataclasses import dataclass

from ghostkv.model.peaks import Peaks
from ghostkv.model.shape import ModelShape


@dataclass(frozen=True, slots=True)
class StepWork:
    """What a step cannot avoid: bytes of weights and KV, each read once; multiply-adds of products and attention."""

    bytes: float
    macs: float

    @classmethod
    def of_decode(
        cls, shape: ModelShape, product_bytes: int, kv_bytes_per_token: float, sequences: int, context: float
    ) -> StepWork:
        """One token for each of `sequences` sequences that see `context` tokens on average."""
        per_layer = shape.hidden * shape.head_size * (2 * shape.heads + 2 * shape.kv_heads)
        per_layer += 3 * shape.hidden * shape.intermediate
        weights = shape.layers * per_layer + shape.vocab * shape.hidden
        attention = 2 * shape.layers * shape.heads * shape.head_size * context
        return cls(product_bytes + sequences * context * kv_bytes_per_token, sequences * (weights + attention))


@dataclass(frozen=True, slots=True)
class Roofline:
    """A step beside its lower bound: the longer of moving its bytes and doing its sums, at the measured peaks."""

    step_s: float  # as measured, sampling included
    memory_s: float
    compute_s: float

    @classmethod
    def of(cls, step_s: float, work: StepWork, peaks: Peaks) -> Roofline:
        """The bound of `work` under `peaks`."""
        return cls(step_s, work.bytes / peaks.bytes_per_second, work.macs / peaks.macs_per_second)

    @property
    def bound(self) -> str:
        """What limits it: "memory" or "compute"."""
        return "memory" if self.memory_s >= self.compute_s else "compute"

    @property
    def share(self) -> float:
        """The bound over the measured time: 1 is all that the machine can do."""
        return max(self.memory_s, self.compute_s) / self.step_s
