"""One KV head's block of 16 slots, and the two inner loops of attention over it.

A block stands in 32-bit words of float32, or of two bfloat16 that are multiplied together (`pairs`); int8 digits, one
by one, take bytes. With p = 2 numbers of bfloat16 to a word, else 1: keys are [head size / p, 16 slots, p], so that a
score vector is a plain sum of products, and values [16 slots / p, head size, p]. Where they are multiplied in pairs,
queries and weights are bfloat16 in words too.

Numba's disk cache knows the file of a kernel, not this one: after an edit here, `make clean-kernels`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ghostkv.model import machine, pairs
from ghostkv.model.vector import (
    F32,
    F32_LANES,
    I32,
    I32_LANES,
    LANES,
    broadcast,
    call,
    floats,
    from_float,
    item_bytes,
    lane_vector,
    pointer,
    prefetch_item,
    to_float,
    vec16,
)

_LINE = 64  # bytes of a cache line
_I16_LANES = ir.VectorType(ir.IntType(16), LANES)
_WORDS = ir.VectorType(I32, LANES // 2)
_ONE = ir.IntType(64)


def _paired(array_type: Any) -> bool:
    return bool(array_type.dtype == types.uint16)


@intrinsic
def per_word(typingctx: Any, array: Any) -> Any:
    """Numbers of such a block that are multiplied together: 2 of bfloat16, else 1."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _ONE(2 if _paired(signature.args[0]) else 1)

    return types.int64(array), generate


@intrinsic
def pack(typingctx: Any, block: Any, out: Any, offset: Any, value: Any) -> Any:
    """Write 16 lanes to words of `out` (float32) from `offset` on, as they are multiplied with the numbers of `block`.

    Beside bfloat16 they are rounded to it and take 8 words.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kind = _I16_LANES if _paired(signature.args[0]) else F32_LANES
        place = pointer(context, builder, signature.args[1], args[1], args[2], kind)
        builder.store(from_float(builder, args[3], kind), place, align=4)
        return context.get_dummy_value()

    return types.none(block, out, types.int64, vec16), generate


@intrinsic
def store_key(typingctx: Any, keys: Any, offset: Any, value: Any) -> Any:
    """Write lanes to 16 channels, from an even one on, of one slot; `offset` is where the first of them stands."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        key_type = signature.args[0]
        raw = from_float(builder, args[2], lane_vector(key_type))
        count = LANES
        if _paired(key_type):
            raw, count = builder.bitcast(raw, _WORDS), LANES // 2
        at, step = args[1], _ONE(LANES * LANES // count)
        for i in range(count):
            place = pointer(context, builder, key_type, args[0], at, raw.type.element)
            builder.store(builder.extract_element(raw, I32(i)), place, align=item_bytes(key_type))
            at = builder.add(at, step)
        return context.get_dummy_value()

    return types.none(keys, types.int64, vec16), generate


@intrinsic
def store_value(typingctx: Any, values: Any, offset: Any, value: Any) -> Any:
    """Write lanes to 16 channels of one slot; `offset` is where the first of them stands."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        value_type = signature.args[0]
        raw = from_float(builder, args[2], lane_vector(value_type))
        if not _paired(value_type):
            place = pointer(context, builder, value_type, args[0], args[1], raw.type)
            builder.store(raw, place, align=item_bytes(value_type))
            return context.get_dummy_value()
        for i in range(LANES):
            place = pointer(context, builder, value_type, args[0], builder.add(args[1], _ONE(2 * i)), raw.type.element)
            builder.store(builder.extract_element(raw, I32(i)), place)
        return context.get_dummy_value()

    return types.none(values, types.int64, vec16), generate


@intrinsic
def channel(typingctx: Any, keys: Any, base: Any, index: Any) -> Any:
    """Channel `index` of a block's 16 keys as float32; the block begins at `base`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        key_type, (keys, base, index) = signature.args[0], args
        if not _paired(key_type):
            offset = builder.add(base, builder.mul(index, _ONE(LANES)))
            place = pointer(context, builder, key_type, keys, offset, lane_vector(key_type))
            return to_float(builder, builder.load(place, align=item_bytes(key_type)))
        offset = builder.add(base, builder.mul(builder.lshr(index, _ONE(1)), _ONE(2 * LANES)))
        words = builder.load(pointer(context, builder, key_type, keys, offset, I32_LANES), align=2)
        odd = builder.trunc(builder.and_(index, _ONE(1)), ir.IntType(1))
        return builder.select(odd, pairs.high(builder, words), pairs.low(builder, words))

    return vec16(keys, types.int64, types.int64), generate


def _stream(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, ahead: Any, index: int) -> Any:
    """16 words at array[offset], digits as float32, and the cache line `ahead` elements further on brought near.

    The vector is number `index` of a run that begins with a cache line: one request is made for each line.
    """
    kind = I32_LANES if _paired(array_type) else lane_vector(array_type)
    if index * LANES * item_bytes(array_type) % _LINE == 0:
        prefetch_item(context, builder, array_type, array, builder.add(offset, ahead))
    raw = builder.load(pointer(context, builder, array_type, array, offset, kind), align=item_bytes(array_type))
    return raw if _paired(array_type) else to_float(builder, raw)


def _steps(words: Any) -> tuple[pairs.Step, ...]:
    """What adds words times others to a sum, in order; words are float32, or two bfloat16 each.

    Each step is taken for all sums before the next: then what it makes of the words is alone in the registers.
    """
    return pairs.steps() if words.type == I32_LANES else (_fused,)


def _fused(builder: Any, total: Any, words: Any, factor: Any) -> Any:
    return call(builder, "llvm.fma.v16f32", F32_LANES, [factor, words, total])


_SUMS = 28 if machine.instruction_sets().get("avx512f", False) else 6
"""Of 16 lanes, that fit into the registers beside what is added to them."""


def side_by_side(heads: int) -> int:
    """Independent sums per head, a power of two: those of two rows fit into the registers, as far as they can."""
    return 4 if 8 * heads <= _SUMS else 2 if 4 * heads <= _SUMS else 1


@intrinsic
def dot_columns(
    typingctx: Any,
    keys: Any,
    base: Any,
    ahead: Any,
    queries: Any,
    query: Any,
    size: Any,
    heads: Any,
    chains: Any,
    out: Any,
    at: Any,
) -> Any:
    """Products of a group of queries with the 16 keys of a block, each key read once for the whole group.

    For each head h of the tuple `heads` (its length is what counts): lanes out[at + 16 h : + 16] = sum over words
    w < size / p of queries[query + h * size / p + w] * keys[base + 16 p w : + 16 p]. `size` is a multiple of 8. Each of
    the `chains` (a tuple too: 1, 2 or 4) sums every so many words, and they are added last.
    Meanwhile the keys that start `ahead` elements further on are brought near: all at once would stall.
    """
    group, width = len(heads), len(chains)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        key_type, query_type, out_type = signature.args[0], signature.args[3], signature.args[8]
        each = _ONE(2 if _paired(key_type) else 1)
        factor = I32 if _paired(key_type) else F32
        words = builder.udiv(args[5], each)
        sums = [[cgutils.alloca_once_value(builder, floats(0.0)) for _ in range(width)] for _ in range(group)]
        with cgutils.for_range(builder, builder.udiv(words, _ONE(width))) as loop:
            first = builder.mul(loop.index, _ONE(width))
            for chain in range(width):
                word = builder.add(first, _ONE(chain))
                offset = builder.add(args[1], builder.mul(builder.mul(word, each), _ONE(LANES)))
                column = _stream(context, builder, key_type, args[0], offset, args[2], chain)
                for step in _steps(column):
                    for head in range(group):
                        position = builder.add(builder.add(args[4], builder.mul(words, _ONE(head))), word)
                        scalar = builder.load(pointer(context, builder, query_type, args[3], position, factor))
                        total, spread = sums[head][chain], broadcast(builder, scalar, column.type)
                        builder.store(step(builder, builder.load(total), column, spread), total)
        for head in range(group):
            total = builder.load(sums[head][0])
            for chain in range(1, width):
                total = builder.fadd(total, builder.load(sums[head][chain]))
            offset = builder.add(args[9], _ONE(head * LANES))
            builder.store(total, pointer(context, builder, out_type, args[8], offset, F32_LANES), align=4)
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(keys, i64, i64, queries, i64, i64, heads, chains, out, i64), generate


@intrinsic
def add_weighted_rows(
    typingctx: Any,
    values: Any,
    base: Any,
    ahead: Any,
    first: Any,
    last: Any,
    scratch: Any,
    weights: Any,
    scales: Any,
    totals: Any,
    size: Any,
    heads: Any,
) -> Any:
    """Weighted sums of a block's values in slots `first` to before `last`, each read once for a group of heads.

    For each head h: scratch[totals + h * size + j] = scratch[scales + h] * itself + sum over those slots, in order, of
    their weights, `pack`ed from scratch[weights + 16 h] on, times channel j of their values. Other slots may hold
    anything. Meanwhile the values that start `ahead` elements further on are brought near.
    """
    group = len(heads)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _WeightedRows(context, builder, signature.args, args, group).emit()
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(values, i64, i64, i64, i64, scratch, i64, i64, i64, i64, heads), generate


class _WeightedRows:
    """Emits `add_weighted_rows`: a few times 16 channels of all heads at a time, sums in registers."""

    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any, group: int) -> None:
        self.context, self.builder, self.group = context, builder, group
        self.value_type, self.scratch_type = kinds[0], kinds[5]
        self.values, self.base, self.ahead, self.first, self.last, self.scratch = args[:6]
        self.weights, self.scales, self.totals, self.size = args[6:10]
        self.width = side_by_side(group)
        self.each = 2 if _paired(self.value_type) else 1

    def emit(self) -> None:
        builder, step = self.builder, LANES * self.width
        begin = builder.udiv(self.first, _ONE(self.each))
        end = builder.udiv(builder.add(self.last, _ONE(self.each - 1)), _ONE(self.each))
        self.sums = [[cgutils.alloca_once(builder, F32_LANES) for _ in range(self.width)] for _ in range(self.group)]
        wide = builder.udiv(self.size, _ONE(step))
        with cgutils.for_range(builder, wide) as part:
            self._fold(begin, end, builder.mul(part.index, _ONE(step)), self.width)
        if self.width > 1:  # channels that are left, of sizes that are no multiple of so many
            rest = builder.sub(self.size, builder.mul(wide, _ONE(step)))
            with cgutils.for_range(builder, builder.udiv(rest, _ONE(LANES))) as part:
                first = builder.mul(wide, _ONE(step))
                self._fold(begin, end, builder.add(first, builder.mul(part.index, _ONE(LANES))), 1)

    def _fold(self, begin: Any, end: Any, column: Any, width: int) -> None:
        """Fold `width` times 16 channels from `column` on of all slots."""
        builder = self.builder
        places = [[self._total(column, head, i) for i in range(width)] for head in range(self.group)]
        for head, row in enumerate(places):
            scale = broadcast(builder, builder.load(self._at(self.scales, head, F32)), F32_LANES)
            for place, total in zip(row, self.sums[head]):
                builder.store(builder.fmul(builder.load(place, align=4), scale), total)
        with cgutils.for_range(builder, builder.sub(end, begin)) as loop:
            self._add(builder.add(begin, loop.index), column, width)
        for head, row in enumerate(places):
            for place, total in zip(row, self.sums[head]):
                builder.store(builder.load(total), place, align=4)

    def _add(self, index: Any, column: Any, width: int) -> None:
        """Add one slot, or a pair of them."""
        builder = self.builder
        row = builder.mul(builder.add(builder.mul(index, self.size), column), _ONE(self.each))
        factor = I32 if self.each == 2 else F32
        shares = [
            builder.load(self._at(builder.add(self.weights, index), head * LANES, factor)) for head in range(self.group)
        ]
        seen = self._seen(index) if self.each == 2 else None
        for i in range(width):
            offset = builder.add(builder.add(self.base, row), _ONE(LANES * self.each * i))
            words = _stream(self.context, builder, self.value_type, self.values, offset, self.ahead, i)
            if seen is not None:
                words = builder.and_(words, seen)
            for step in _steps(words):
                for head in range(self.group):
                    total, share = self.sums[head][i], broadcast(builder, shares[head], words.type)
                    builder.store(step(builder, builder.load(total), words, share), total)

    def _seen(self, pair: Any) -> Any:
        """A mask of the halves of a pair that are seen: weight 0 would not do for what is not a number."""
        builder, slot = self.builder, self.builder.shl(pair, _ONE(1))
        low = builder.select(builder.icmp_signed(">=", slot, self.first), I32(0xFFFF), I32(0))
        following = builder.add(slot, _ONE(1))
        high = builder.select(builder.icmp_signed("<", following, self.last), I32(-65536), I32(0))
        return broadcast(builder, builder.or_(low, high), I32_LANES)

    def _total(self, column: Any, head: int, i: int) -> Any:
        builder = self.builder
        start = builder.add(self.totals, builder.mul(self.size, _ONE(head)))
        return self._at(builder.add(start, column), LANES * i, F32_LANES)

    def _at(self, offset: Any, further: int, kind: Any) -> Any:
        place = self.builder.add(offset, _ONE(further))
        return pointer(self.context, self.builder, self.scratch_type, self.scratch, place, kind)
