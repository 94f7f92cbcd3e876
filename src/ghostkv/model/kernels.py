"""The CPU routines between the matrix products: each row is computed the same way in every batch.

Every array is flat; rows are contiguous. uint16 arrays hold bfloat16, and each routine also takes float32. KV may stand
as int8 digits too, whose scales are then given (`kv_kernels`); else `scales` is None, and compiles to nothing. Work is
dealt to threads by stride, so a row's bits depend on neither the batch nor the number of threads. Callers hold the
compute lock (`model/threads.py`): Numba's fallback threading layer must not be entered twice.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit, prange

from ghostkv.model import kv_block
from ghostkv.model import vector as v
from ghostkv.model.activations import activated
from ghostkv.model.int8_kernels import transform
from ghostkv.model.kv_kernels import scaled, turn_key, write_key, write_value
from ghostkv.model.kv_tensors import BLOCK_SCALES
from ghostkv.step import BLOCK_TOKENS

_NEGATIVE_INFINITY = np.float32(-np.inf)
_ZERO = np.float32(0.0)
_ONE = np.float32(1.0)

# Layout of one thread's attention scratch, in floats: for each query head of the group the running maximum, the new
# maximum, the scale from old to new and the running sum; then the weights of one block [group, 16] and the accumulators
# [group, head size].
_MAXIMUM, _NEW, _SCALE, _SUM, _WEIGHTS = 0, 16, 32, 48, 64
MAX_GROUP = 16

_PREFETCH = 2  # blocks ahead: one is not enough to hide a memory access, three gain nothing more


def _accumulators(group: int) -> int:
    return _WEIGHTS + group * BLOCK_TOKENS


accumulators_at = njit(_accumulators)


Lengths = tuple[int, ...]  # only how many there are counts: kernels are compiled for it


def group_lengths(group: int) -> tuple[Lengths, Lengths, Lengths]:
    """(heads, pair, chains) of `attend` for so many query heads per KV head."""
    pair = 2 * group if 2 * group <= MAX_GROUP else 0
    return (0,) * group, (0,) * pair, (0,) * kv_block.side_by_side(group)


@njit
def scratch_floats(group: int, size: int) -> int:
    """One thread's scratch: the state of one row's group, then that of two rows together, then their queries."""
    return accumulators_at(group) + accumulators_at(2 * group) + 5 * group * size


def attention_scratch(threads: int, group: int, head_size: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Scratch for `attend`: [threads * floats per thread], float32. `group` is query heads per KV head, at most 16."""
    return np.zeros(threads * scratch_floats(group, head_size), dtype=np.float32)


@njit(nogil=True, cache=True)
def begin_group(scratch: Any, at: int, group: int, size: int) -> None:
    """Empty the running softmax of one query row's group."""
    zeros = v.splat(_ZERO)
    v.store(scratch, at + _MAXIMUM, v.keep_first(v.splat(_NEGATIVE_INFINITY), group, _ZERO))
    v.store(scratch, at + _NEW, zeros)
    v.store(scratch, at + _SUM, zeros)
    totals = at + accumulators_at(group)
    for i in range(totals, totals + group * size, v.LANES):
        v.store(scratch, i, zeros)


@njit(nogil=True, cache=True)
def end_group(scratch: Any, at: int, group: int, size: int, output: Any, to: int) -> None:
    """Write the weighted means that the running softmax has come to."""
    for i in range(group):
        share = v.splat(_ONE / scratch[at + _SUM + i])
        for j in range(0, size, v.LANES):
            total = v.load(scratch, at + accumulators_at(group) + i * size + j)
            v.store(output, to + i * size + j, v.mul(total, share))


@njit(nogil=True, cache=True, inline="never")
def attend_block(
    keys: Any,
    key_base: int,
    values: Any,
    value_base: int,
    scales: Any,
    scale_base: int,
    ahead: int,
    first: int,
    last: int,
    queries: Any,
    query: int,
    scratch: Any,
    at: int,
    heads: Any,
    chains: Any,
    size: int,
) -> None:
    """Fold slots `first` to before `last` of a block into a query row's running softmax (online, Milakov 2018).

    Keys and values as `kv_block` says, queries packed for the keys. The scales of digits are factors of a slot's score,
    then of its weight: no digit is scaled by itself. The block to bring near meanwhile is `ahead` elements further on.
    """
    group = len(heads)
    kv_block.dot_columns(keys, key_base, ahead, queries, query, size, heads, chains, scratch, at + _WEIGHTS)
    for head in range(group):
        w = at + _WEIGHTS + head * BLOCK_TOKENS
        scores = v.keep_between(scaled(v.load(scratch, w), scales, scale_base), first, last, _NEGATIVE_INFINITY)
        v.store(scratch, w, scores)
        scratch[at + _NEW + head] = max(scratch[at + _MAXIMUM + head], v.lane_max(scores))
    new = v.load(scratch, at + _NEW)
    v.store(scratch, at + _SCALE, v.exp(v.sub(v.load(scratch, at + _MAXIMUM), new)))
    v.store(scratch, at + _MAXIMUM, new)
    for head in range(group):
        w = at + _WEIGHTS + head * BLOCK_TOKENS
        weights = v.exp(v.sub(v.load(scratch, w), v.splat(scratch[at + _NEW + head])))
        scratch[at + _SUM + head] = scratch[at + _SUM + head] * scratch[at + _SCALE + head] + v.lane_sum(weights)
        kv_block.pack(values, scratch, w, scaled(weights, scales, scale_base + BLOCK_TOKENS))
    totals = at + accumulators_at(group)
    kv_block.add_weighted_rows(
        values, value_base, ahead, first, last, scratch, at + _WEIGHTS, at + _SCALE, totals, size, heads
    )


@njit(nogil=True, cache=True)
def _attend_blocks(
    keys: Any,
    values: Any,
    scales: Any,
    tables: Any,
    table: int,
    blocks: tuple[int, int],
    seen: tuple[int, int],
    place_of_head: tuple[int, int],
    queries: Any,
    query: int,
    scratch: Any,
    at: int,
    heads: Any,
    chains: Any,
    size: int,
) -> None:
    """Fold the blocks from blocks[0] to before blocks[1] of a table, of which slots seen[0] to before seen[1] are seen.

    place_of_head: (number of KV heads, the one).
    """
    kv_heads, head = place_of_head
    for block in range(blocks[0], blocks[1]):
        place = np.int64(tables[table + block]) * kv_heads + head
        following = np.int64(tables[table + min(block + _PREFETCH, blocks[1] - 1)]) * kv_heads + head
        base, ahead = place * size * BLOCK_TOKENS, (following - place) * size * BLOCK_TOKENS
        if scales is not None:
            v.prefetch(scales, following * BLOCK_SCALES)
        first = max(seen[0] - block * BLOCK_TOKENS, 0)
        behind = min(BLOCK_TOKENS, seen[1] - block * BLOCK_TOKENS)
        at_scales = place * BLOCK_SCALES
        attend_block(
            keys,
            base,
            values,
            base,
            scales,
            at_scales,
            ahead,
            first,
            behind,
            queries,
            query,
            scratch,
            at,
            heads,
            chains,
            size,
        )


@njit(nogil=True, cache=True)
def _hidden(position: int, window: Any) -> Any:
    """Tokens before those that a query at `position` sees."""
    if window is None:
        return 0
    return max(position + 1 - window, 0)


@njit(nogil=True, cache=True)
def _common_blocks(
    tables: Any, width: int, table_of_row: Any, positions: Any, one: int, other: int, window: Any
) -> int:
    """Leading blocks that two rows share, of those that both see whole; 0 where a window hides anything."""
    whole = (min(positions[one], positions[other]) + 1) // BLOCK_TOKENS
    if _hidden(max(positions[one], positions[other]), window) > 0:
        return 0
    if table_of_row[one] == table_of_row[other]:
        return whole
    first, second = table_of_row[one] * width, table_of_row[other] * width
    common = 0
    while common < whole and tables[first + common] == tables[second + common]:
        common += 1
    return common


@njit(nogil=True, cache=True)
def _part_group(scratch: Any, pair: int, second: int, at: int, group: int, size: int) -> None:
    """Copy the running softmax of the first or second row of a pair to a place of its own."""
    first = pair + second * group
    v.store(scratch, at + _MAXIMUM, v.keep_first(v.load(scratch, first + _MAXIMUM), group, _ZERO))
    v.store(scratch, at + _NEW, v.splat(_ZERO))
    v.store(scratch, at + _SUM, v.keep_first(v.load(scratch, first + _SUM), group, _ZERO))
    source, to = pair + accumulators_at(2 * group) + second * group * size, at + accumulators_at(group)
    for i in range(0, group * size, v.LANES):
        v.store(scratch, to + i, v.load(scratch, source + i))


@njit(nogil=True, cache=True, parallel=True)
def attend(
    queries: Any,
    keys: Any,
    values: Any,
    scales: Any,
    tables: Any,
    width: int,
    table_of_row: Any,
    positions: Any,
    output: Any,
    scratch: Any,
    members: Any,
    window: Any,
    kv_heads: int,
    heads: Any,
    pair: Any,
    chains: Any,
    size: int,
    threads: int,
) -> None:
    """Causal attention of each row in `members` (int64) over the pool blocks of its own table, blocks in order.

    heads is a tuple whose length is the number of query heads per KV head (compiled for each), pair one twice as long,
    or empty; chains as `vector.dot_columns` takes it. Two rows that begin with the same blocks read those together:
    each row's sums stay as they are alone.
    queries float32 [rows, kv_heads * len(heads), size], already scaled; keys and values [blocks, kv_heads] of one
    layer, blocks as in `kv_block`, scales None or [blocks, kv_heads, 2, 16]; tables int32
    [sequences, width]; output like queries. Digits stand for turned keys: the members' queries are turned in place.
    window: so many tokens up to its own does a query see (blocks wholly before them are not read), None for all. Two
    rows from which it hides something read their blocks apart.
    """
    group = len(heads)
    span, each = group * size, kv_block.per_word(keys)
    words = span // each  # of a row's packed queries
    step = 2 if len(pair) > 0 and len(members) >= 2 * threads else 1
    runs = (len(members) + step - 1) // step
    for thread in prange(threads):
        at = thread * scratch_floats(group, size)
        both = at + accumulators_at(group) + span
        asked = both + accumulators_at(2 * group) + 2 * span
        for task in range(thread, runs * kv_heads, threads):
            head = task % kv_heads
            first = task // kv_heads * step
            last = min(first + step, len(members))
            for i in range(first, last):
                query = (members[i] * kv_heads + head) * span
                if scales is not None:
                    transform(queries, query, span, size & -size)
                for j in range(0, span, v.LANES):
                    kv_block.pack(keys, scratch, asked + (i - first) * words + j // each, v.load(queries, query + j))
            common = 0
            if last - first == 2:
                one, other = members[first], members[first + 1]
                common = _common_blocks(tables, width, table_of_row, positions, one, other, window)
            if common > 0:
                begin_group(scratch, both, len(pair), size)
                _attend_blocks(
                    keys, values, scales, tables, table_of_row[members[first]] * width, (0, common),
                    (0, common * BLOCK_TOKENS), (kv_heads, head), scratch, asked, scratch, both, pair, chains, size,
                )  # fmt: skip
            for i in range(first, last):
                row = members[i]
                if common > 0:
                    _part_group(scratch, both, i - first, at, group, size)
                else:
                    begin_group(scratch, at, group, size)
                shown = _hidden(positions[row], window), positions[row] + 1
                rest = max(common, shown[0] // BLOCK_TOKENS), (shown[1] + BLOCK_TOKENS - 1) // BLOCK_TOKENS
                _attend_blocks(
                    keys, values, scales, tables, table_of_row[row] * width, rest, shown, (kv_heads, head),
                    scratch, asked + (i - first) * words, scratch, at, heads, chains, size,
                )  # fmt: skip
                end_group(scratch, at, group, size, output, (row * kv_heads + head) * span)


@njit(nogil=True, cache=True)
def _load(array: Any, at: int, count: int) -> Any:
    """Up to 16 lanes; a whole load where they are 16."""
    if count == v.LANES:
        return v.load(array, at)
    return v.load_part(array, at, count)


@njit(nogil=True, cache=True)
def _store(array: Any, at: int, lanes: Any, count: int) -> None:
    if count == v.LANES:
        v.store(array, at, lanes)
    else:
        v.store_part(array, at, lanes, count)


@njit(nogil=True, cache=True)
def _biased(qkv: Any, at: int, bias: Any, place: int, count: int) -> Any:
    lanes = _load(qkv, at, count)
    if bias is None:
        return lanes
    return v.add(lanes, _load(bias, place, count))


@njit(nogil=True, cache=True)
def _normed(lanes: Any, share: Any, weights: Any, at: int, count: int) -> Any:
    if weights is None:
        return lanes
    return v.mul(v.mul(lanes, v.splat(share)), _load(weights, at, count))


@njit(nogil=True, cache=True, error_model="numpy")
def _head_share(qkv: Any, x: int, bias: Any, place: int, weights: Any, size: int, epsilon: float) -> Any:
    """What RMSNorm multiplies a head by, before its weights: 1 / sqrt(mean(x^2) + epsilon)."""
    if weights is None:
        return _ONE
    squares = v.splat(_ZERO)
    for j in range(0, size, v.LANES):
        lanes = _biased(qkv, x + j, bias, place + j, v.LANES)
        squares = v.fma(lanes, lanes, squares)
    return _ONE / np.sqrt(v.lane_sum(squares) / np.float32(size) + np.float32(epsilon))


@njit(nogil=True, cache=True)
def _rotated(first: Any, second: Any, cosines: Any, sines: Any, at: int, count: int) -> Any:
    """Channels i and i + size / 2 turned by their angle."""
    if cosines is None:
        return first, second
    cosine, sine = _load(cosines, at, count), _load(sines, at, count)
    return v.sub(v.mul(first, cosine), v.mul(second, sine)), v.fma(second, cosine, v.mul(first, sine))


@njit(nogil=True, cache=True)
def _write_biased(
    qkv: Any,
    x: int,
    bias: Any,
    place: int,
    scratch: Any,
    at: int,
    size: int,
    values: Any,
    to: int,
    scales: Any,
    scale_at: int,
) -> None:
    """`write_value` of a value with its bias."""
    if bias is None:
        write_value(qkv, x, size, values, to, scales, scale_at)
    else:
        for j in range(0, size, v.LANES):
            v.store(scratch, at + j, _biased(qkv, x + j, bias, place + j, v.LANES))
        write_value(scratch, at, size, values, to, scales, scale_at)


@njit(nogil=True, cache=True, parallel=True)
def rotate_and_write(
    qkv: Any,
    queries: Any,
    keys: Any,
    values: Any,
    scales: Any,
    slots: Any,
    positions: Any,
    key_positions: Any,
    cosines: Any,
    sines: Any,
    bias: Any,
    head_norm: Any,
    scratch: Any,
    rows: int,
    heads: int,
    kv_heads: int,
    size: int,
    epsilon: float,
    scale: float,
    threads: int,
) -> None:
    """Split fused projections, add biases, norm and rotate queries and keys (RoPE, half-split pairs), write to slots.

    qkv [rows, (heads + 2 kv_heads) * size]; queries out, float32, multiplied by `scale`; slots int64 [rows] =
    block * 16 + offset; cosines and sines float32 [context, size / 2], bias float32 like a row of qkv, head_norm
    float32 [2 * size], the weights for a query, then for a key: each None for what is not done; scratch float32
    [threads * size]. Position 0 rotates a key by nothing, bit for bit. With scales, keys are turned and written as
    digits, values written as digits.
    """
    half, each = size // 2, kv_block.per_word(keys)
    for thread in prange(threads):
        key = thread * size  # of `scratch`
        for row in range(thread, rows, threads):
            source = row * (heads + 2 * kv_heads) * size
            block = slots[row] // BLOCK_TOKENS * kv_heads
            offset = slots[row] % BLOCK_TOKENS
            for head in range(heads + kv_heads):
                own = head * size
                x = source + own
                angle = (positions[row] if head < heads else key_positions[row]) * half
                norm = 0 if head < heads else size
                share = _head_share(qkv, x, bias, own, head_norm, size, epsilon)
                for j in range(0, half, v.LANES):
                    count = min(v.LANES, half - j)
                    first = _biased(qkv, x + j, bias, own + j, count)
                    second = _biased(qkv, x + half + j, bias, own + half + j, count)
                    first = _normed(first, share, head_norm, norm + j, count)
                    second = _normed(second, share, head_norm, norm + half + j, count)
                    low, high = _rotated(first, second, cosines, sines, angle + j, count)
                    if head < heads:
                        target = (row * heads + head) * size
                        _store(queries, target + j, v.mul(low, v.splat(np.float32(scale))), count)
                        _store(queries, target + half + j, v.mul(high, v.splat(np.float32(scale))), count)
                    else:
                        _store(scratch, key + j, low, count)
                        _store(scratch, key + half + j, high, count)
                if head >= heads:
                    place = block + head - heads
                    target = place * size * BLOCK_TOKENS + offset * each
                    if scales is not None:
                        turn_key(scratch, key, size)
                    at_scale = place * BLOCK_SCALES + offset
                    write_key(scratch, key, size, keys, target, scales, at_scale)
            for head in range(kv_heads):
                own = (heads + kv_heads + head) * size
                target = ((block + head) * BLOCK_TOKENS + offset // each * each) * size + offset % each
                at_scale = (block + head) * BLOCK_SCALES + BLOCK_TOKENS + offset
                _write_biased(qkv, source + own, bias, own, scratch, key, size, values, target, scales, at_scale)


@njit(nogil=True, cache=True, inline="never")
def _norm_row(residual: Any, at: int, weight: Any, output: Any, to: int, width: int, epsilon: float) -> None:
    """RMSNorm of one row: x / sqrt(mean(x^2) + epsilon) * weight."""
    whole = width - width % v.LANES
    squares = v.splat(_ZERO)
    for j in range(0, whole, v.LANES):
        x = v.load(residual, at + j)
        squares = v.fma(x, x, squares)
    if whole < width:
        x = v.load_part(residual, at + whole, width - whole)
        squares = v.fma(x, x, squares)
    mean = v.lane_sum(squares) / np.float32(width)
    scale = v.splat(_ONE / np.sqrt(mean + np.float32(epsilon)))
    for j in range(0, whole, v.LANES):
        v.store(output, to + j, v.mul(v.mul(v.load(residual, at + j), scale), v.load(weight, j)))
    if whole < width:
        rest = width - whole
        x = v.mul(v.mul(v.load_part(residual, at + whole, rest), scale), v.load_part(weight, whole, rest))
        v.store_part(output, to + whole, x, rest)


@njit(nogil=True, cache=True, parallel=True)
def embed(ids: Any, table: Any, residual: Any, rows: int, width: int, threads: int) -> None:
    """residual[row] = table[ids[row]]; residual float32 [rows, width], table [vocabulary, width]."""
    whole = width - width % v.LANES
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            source = np.int64(ids[row]) * width
            for j in range(0, whole, v.LANES):
                v.store(residual, row * width + j, v.load(table, source + j))
            if whole < width:
                x = v.load_part(table, source + whole, width - whole)
                v.store_part(residual, row * width + whole, x, width - whole)


@njit(nogil=True, cache=True, inline="never")
def _add_row(residual: Any, delta: Any, at: int, width: int) -> None:
    whole = width - width % v.LANES
    for j in range(at, at + whole, v.LANES):
        v.store(residual, j, v.add(v.load(residual, j), v.load(delta, j)))
    if whole < width:
        rest = width - whole
        x = v.add(v.load_part(residual, at + whole, rest), v.load_part(delta, at + whole, rest))
        v.store_part(residual, at + whole, x, rest)


@njit(nogil=True, cache=True, parallel=True)
def add(residual: Any, delta: Any, rows: int, width: int, threads: int) -> None:
    """residual[row] += delta[row]; residual float32 [rows, width]."""
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            _add_row(residual, delta, row * width, width)


@njit(nogil=True, cache=True, parallel=True)
def add_norm(
    residual: Any, delta: Any, weight: Any, output: Any, rows: int, width: int, epsilon: float, threads: int
) -> None:
    """residual[row] += delta[row]; output[row] = RMSNorm(residual[row])."""
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            _add_row(residual, delta, row * width, width)
            _norm_row(residual, row * width, weight, output, row * width, width, epsilon)


@njit(nogil=True, cache=True, parallel=True)
def norm(
    residual: Any, source_rows: Any, weight: Any, output: Any, rows: int, width: int, epsilon: float, threads: int
) -> None:
    """output[row] = RMSNorm(residual[source_rows[row]]); residual float32, output and weight in the model's type."""
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            _norm_row(residual, source_rows[row] * width, weight, output, row * width, width, epsilon)


@njit(nogil=True, cache=True, parallel=True)
def gated(gate_up: Any, output: Any, rows: int, width: int, activation: int, threads: int) -> None:
    """output = activation(gate) * up, by the numbers of `activations`; gate_up [rows, 2 * width], gate first."""
    whole = width - width % v.LANES
    for thread in prange(threads):
        for row in range(thread, rows, threads):
            at = 2 * row * width
            for j in range(0, whole, v.LANES):
                gate = activated(v.load(gate_up, at + j), activation)
                v.store(output, row * width + j, v.mul(gate, v.load(gate_up, at + width + j)))
            if whole < width:
                rest = width - whole
                gate = activated(v.load_part(gate_up, at + whole, rest), activation)
                x = v.mul(gate, v.load_part(gate_up, at + width + whole, rest))
                v.store_part(output, row * width + whole, x, rest)
