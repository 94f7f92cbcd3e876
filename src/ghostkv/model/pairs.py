"""Two bfloat16 in a 32-bit word, multiplied with two others and added to a float32, sixteen words at a time.

With AVX512_BF16 one instruction, rounded as it does: both products are added to each other first, numbers too small to
be normal count as 0. Elsewhere two fused multiply-adds, the lower half first. Which of them is part of the manifest, as
the processor's features are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir

from ghostkv.model import machine
from ghostkv.model.vector import F32_LANES, LANES, call, ints


class _BFloat(ir.Type):
    def _to_string(self) -> str:
        return "bfloat"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _BFloat)

    def __hash__(self) -> int:
        return hash(_BFloat)


_PAIRS = ir.VectorType(_BFloat(), 2 * LANES)

# (builder, total, a, b) -> total with some of the products of a and b
Step = Callable[[Any, Any, Any, Any], Any]


def native() -> bool:
    """Whether the processor has the instruction."""
    return machine.instruction_sets().get("avx512bf16", False)


def steps() -> tuple[Step, ...]:
    """What makes total + low(a) * low(b) + high(a) * high(b), lane by lane, in order; total float32, a and b words."""
    return (_both,) if native() else (_lower, _upper)


def _both(builder: Any, total: Any, a: Any, b: Any) -> Any:
    factors = [builder.bitcast(x, _PAIRS) for x in (a, b)]
    return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", F32_LANES, [total, *factors])


def _lower(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", F32_LANES, [low(builder, a), low(builder, b), total])


def _upper(builder: Any, total: Any, a: Any, b: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", F32_LANES, [high(builder, a), high(builder, b), total])


def low(builder: Any, words: Any) -> Any:
    """The bfloat16 in the lower half of each word, as float32."""
    return builder.bitcast(builder.shl(words, ints(16)), F32_LANES)


def high(builder: Any, words: Any) -> Any:
    """The bfloat16 in the upper half of each word, as float32."""
    return builder.bitcast(builder.and_(words, ints(-65536)), F32_LANES)
