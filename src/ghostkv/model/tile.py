"""The inner loop of a matrix product: a few rows times one panel of outputs, all sums in registers.

Per output and row, one running sum takes up a 32-bit word of the inputs at a time, in order: four digits (exact, so
alike on every processor: `vpdpbusd`, or `vpmaddwd` twice) or two bfloat16 (`pairs.steps`). So a row's bits
cannot depend on the rows beside it. For AVX-512 with VNNI or BF16, and for AVX2: see `panels.readable`.

Numba's disk cache knows the file of a kernel, not this one: after an edit here, `make clean-kernels`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from ghostkv.model import machine, pairs
from ghostkv.model.vector import F32_LANES, I32, I32_LANES, LANES, broadcast, call, pointer, prefetch_line

_WIDE = machine.instruction_sets().get("avx512f", False)
PARTS = 3 if _WIDE else 1  # cache lines of a panel's words
PANEL = PARTS * LANES  # outputs of a panel
TILE_ROWS = 8 if _WIDE else 4  # 24 sums for 32 registers, or 8 for 16: with what they are made of as many as fit
WORD = 4  # bytes
_SECOND_CACHE = 2  # where what is brought near is put: a panel is larger than the first

_I64 = ir.IntType(64)


_BYTES = ir.VectorType(ir.IntType(8), 4 * LANES)
_SHORTS = ir.VectorType(ir.IntType(16), 2 * LANES)


@intrinsic
def multiply_tile(
    typingctx: Any,
    x: Any,
    row: Any,
    inputs: Any,
    panels: Any,
    panel: Any,
    starts: Any,
    start: Any,
    sums: Any,
    to: Any,
    count: Any,
    ahead: Any,
) -> Any:
    """Inner products of `count` rows, 1 to TILE_ROWS, with the outputs of a panel.

    sums[to + PANEL i + j] = starts[start + j] + sum over k of x[row + i * inputs + k] * the panel's weight [j, k].
    x uint16 (bfloat16) or uint8; panels, of that type or int8, hold [inputs / n][PANEL][n], n elements being a word;
    `panel` is where one begins. sums float32 or int32, starts None (0) or int32.
    With TILE_ROWS, one cache line of each word's of the panel at `ahead`, which may lie outside, is brought near.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _Tile(context, builder, signature.args, args).emit()
        return context.get_dummy_value()

    i64 = types.int64
    return types.none(x, i64, i64, panels, i64, starts, i64, sums, i64, i64, i64), generate


class _Tile:
    """Emits the loop for each number of rows, and the jump to the one that is asked for."""

    def __init__(self, context: Any, builder: Any, kinds: Any, args: Any) -> None:
        self.context, self.builder, self.kinds, self.args = context, builder, kinds, args
        self.floats = kinds[7].dtype == types.float32
        self.lanes = F32_LANES if self.floats else I32_LANES
        self.per_word = WORD * 8 // kinds[0].dtype.bitwidth
        self.steps = pairs.steps() if self.floats else (_add_four if _WIDE else _add_two_and_two,)

    def emit(self) -> None:
        builder = self.builder
        done = builder.append_basic_block("tile.done")
        jump = builder.switch(self.args[9], done)
        words = None
        for rows in range(1, TILE_ROWS + 1):
            block = builder.append_basic_block(f"tile.{rows}")
            jump.add_case(_I64(rows), block)
            builder.position_at_end(block)
            words = builder.udiv(self.args[2], _I64(self.per_word))
            self._loop(rows, words)
            builder.branch(done)
        builder.position_at_end(done)

    def _loop(self, rows: int, words: Any) -> None:
        builder, before = self.builder, self.builder.block
        first = [self._start(part) for part in range(PARTS)]
        loop, after = builder.append_basic_block("tile.loop"), builder.append_basic_block("tile.after")
        builder.branch(loop)
        builder.position_at_end(loop)
        word = builder.phi(_I64)
        word.add_incoming(_I64(0), before)
        totals = [[builder.phi(self.lanes) for _ in first] for _ in range(rows)]
        for row in totals:
            for total, value in zip(row, first):
                total.add_incoming(value, before)
        weights = [self._weights(word, part) for part in range(len(first))]
        if rows == TILE_ROWS:
            self._bring_near(word)
        following = builder.add(word, _I64(1))
        word.add_incoming(following, loop)
        sums: list[list[Any]] = [list(row) for row in totals]
        for step in self.steps:  # all rows take one before the next, that few parts of the weights are in registers
            for index, row in enumerate(sums):
                inputs = self._inputs(index, word)
                row[:] = [step(builder, total, inputs, weight) for total, weight in zip(row, weights)]
        for row, after_word in zip(totals, sums):
            for total, value in zip(row, after_word):
                total.add_incoming(value, loop)
        builder.cbranch(builder.icmp_unsigned("<", following, words), loop, after)
        builder.position_at_end(after)
        for index, row in enumerate(sums):
            for part, value in enumerate(row):
                at = builder.add(self.args[8], _I64(index * PANEL + part * LANES))
                builder.store(value, self._pointer(7, at, self.lanes), align=WORD)

    def _start(self, part: int) -> Any:
        if self.kinds[5] == types.none:
            return ir.Constant(self.lanes, [0.0 if self.floats else 0] * LANES)
        at = self.builder.add(self.args[6], _I64(part * LANES))
        return self.builder.load(self._pointer(5, at, self.lanes), align=WORD)

    def _weights(self, word: Any, part: int) -> Any:
        builder = self.builder
        at = builder.mul(builder.add(builder.mul(word, _I64(PANEL)), _I64(part * LANES)), _I64(self.per_word))
        place = self._pointer(3, builder.add(self.args[4], at), I32_LANES)
        return builder.load(place, align=1)

    def _bring_near(self, word: Any) -> None:
        builder = self.builder
        at = builder.mul(word, _I64(PANEL * self.per_word))
        prefetch_line(builder, self._pointer(3, builder.add(self.args[10], at), ir.IntType(8)), _SECOND_CACHE)

    def _inputs(self, row: int, word: Any) -> Any:
        """The word of one row in all lanes."""
        builder = self.builder
        at = builder.add(builder.mul(self.args[2], _I64(row)), builder.mul(word, _I64(self.per_word)))
        scalar = builder.load(self._pointer(0, builder.add(self.args[1], at), I32), align=1)
        return broadcast(builder, scalar, I32_LANES)

    def _pointer(self, index: int, offset: Any, vector: Any) -> Any:
        return pointer(self.context, self.builder, self.kinds[index], self.args[index], offset, vector)


def _add_four(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """total + the products of the four digits of each word."""
    digits = [builder.bitcast(value, _BYTES) for value in (inputs, weights)]
    return call(builder, "llvm.x86.avx512.vpdpbusd.512", I32_LANES, [total, *digits])


def _add_two_and_two(builder: Any, total: Any, inputs: Any, weights: Any) -> Any:
    """The same without that instruction: the first and the third, as 16 bits each, then the second and the fourth."""
    mine, theirs = (builder.bitcast(value, _SHORTS) for value in (inputs, weights))
    first = builder.and_(mine, _shorts(255)), builder.ashr(builder.shl(theirs, _shorts(8)), _shorts(8))
    second = builder.lshr(mine, _shorts(8)), builder.ashr(theirs, _shorts(8))
    return builder.add(builder.add(total, _pair_sums(builder, *first)), _pair_sums(builder, *second))


def _pair_sums(builder: Any, a: Any, b: Any) -> Any:
    """Products of 16-bit integers, the two of each word added: by halves, for an AVX2 register holds eight words."""
    halves = []
    for first in (0, LANES):
        order = ir.Constant(ir.VectorType(I32, LANES), list(range(first, first + LANES)))
        factors = [builder.shuffle_vector(x, ir.Constant(_SHORTS, ir.Undefined), order) for x in (a, b)]
        halves.append(call(builder, "llvm.x86.avx2.pmadd.wd", ir.VectorType(I32, LANES // 2), factors))
    return builder.shuffle_vector(*halves, ir.Constant(I32_LANES, list(range(LANES))))


def _shorts(value: int) -> ir.Constant:
    return ir.Constant(_SHORTS, [value] * _SHORTS.count)
