"""A 16-lane float32 vector for Numba, so that kernels state their SIMD shape and summation order themselves.

LLVM lowers it to one AVX-512 register, two AVX2 or four NEON registers. Nothing here is reassociated: a sum over lanes
is a fixed tree, `fma` rounds once. Arrays are one-dimensional; offsets count elements. uint16 arrays hold bfloat16,
int8 arrays digits (-127..127), int32 arrays are only read.

Numba's disk cache knows the file of a kernel, not this one: after an edit here, `make clean-kernels`.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic

LANES = 16

F32 = ir.FloatType()
_I8 = ir.IntType(8)
_I16 = ir.IntType(16)
I32 = ir.IntType(32)
F32_LANES = ir.VectorType(F32, LANES)
_VI8 = ir.VectorType(_I8, LANES)
_VI16 = ir.VectorType(_I16, LANES)
I32_LANES = ir.VectorType(I32, LANES)


class _Vec16(types.Type):
    def __init__(self) -> None:
        super().__init__(name="vec16")


vec16 = _Vec16()


@register_default(_Vec16)
class _Vec16Model(models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: Any) -> None:
        super().__init__(dmm, fe_type, F32_LANES)


def ints(value: int) -> ir.Constant:
    return ir.Constant(I32_LANES, [value] * LANES)


def floats(value: float) -> ir.Constant:
    return ir.Constant(F32_LANES, [value] * LANES)


def call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(result, [a.type for a in args]), name)
    return builder.call(function, args)


def pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any, vector: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [offset]), vector.as_pointer())


def lane_vector(array_type: Any) -> Any:
    return {types.int8: _VI8, types.uint16: _VI16, types.int32: I32_LANES}.get(array_type.dtype, F32_LANES)


def item_bytes(array_type: Any) -> int:
    return int(array_type.dtype.bitwidth) // 8


def to_float(builder: Any, raw: Any) -> Any:
    """Bfloat16 bits are the upper half of a float32; an integer is rounded to nearest even."""
    if raw.type in (_VI8, I32_LANES):
        return builder.sitofp(raw, F32_LANES)
    if raw.type != _VI16:
        return raw
    return builder.bitcast(builder.shl(builder.zext(raw, I32_LANES), ints(16)), F32_LANES)


def from_float(builder: Any, value: Any, vector: Any) -> Any:
    """Round to nearest even. A NaN may come out as another NaN or infinity; weights are checked for both at load.

    As a digit it is clamped to -127..127, and a NaN gives -127.
    """
    if vector is F32_LANES:
        return value
    if vector is _VI8:
        low, high = floats(-127.0), floats(127.0)
        clamped = builder.select(builder.fcmp_ordered(">", value, low), value, low)
        clamped = builder.select(builder.fcmp_ordered("<", clamped, high), clamped, high)
        rounded = builder.fptosi(call(builder, "llvm.rint.v16f32", F32_LANES, [clamped]), I32_LANES)
        return builder.trunc(rounded, _VI8)
    bits = builder.bitcast(value, I32_LANES)
    odd = builder.and_(builder.lshr(bits, ints(16)), ints(1))
    rounded = builder.add(builder.add(bits, ints(0x7FFF)), odd)
    return builder.trunc(builder.lshr(rounded, ints(16)), _VI16)


def _mask(builder: Any, count: Any) -> Any:
    lanes = ir.Constant(I32_LANES, list(range(LANES)))
    return builder.icmp_signed("<", lanes, broadcast(builder, builder.trunc(count, I32), I32_LANES))


def broadcast(builder: Any, scalar: Any, vector: Any) -> Any:
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(I32, 0))
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), ir.Constant(I32_LANES, [0] * LANES))


def _tree(builder: Any, value: Any, combine: Any) -> Any:
    """Reduce lanes pairwise: halves of 8, 4, 2, 1."""
    width = LANES
    while width > 1:
        width //= 2
        low = ir.Constant(ir.VectorType(I32, width), list(range(width)))
        high = ir.Constant(ir.VectorType(I32, width), list(range(width, 2 * width)))
        undefined = ir.Constant(value.type, ir.Undefined)
        value = combine(
            builder.shuffle_vector(value, undefined, low),
            builder.shuffle_vector(value, undefined, high),
        )
    return builder.extract_element(value, ir.Constant(I32, 0))


@intrinsic
def load(typingctx: Any, array: Any, offset: Any) -> Any:
    """Lanes array[offset : offset + 16] as float32."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(context, builder, signature.args[0], args[0], args[1], lane_vector(signature.args[0]))
        raw = builder.load(place, align=item_bytes(signature.args[0]))
        return to_float(builder, raw)

    return vec16(array, types.int64), generate


@intrinsic
def load_part(typingctx: Any, array: Any, offset: Any, count: Any) -> Any:
    """Lanes array[offset : offset + count] as float32, the others 0."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = lane_vector(signature.args[0])
        place = pointer(context, builder, signature.args[0], args[0], args[1], vector)
        suffix = "v16f32" if vector is F32_LANES else "v16i16" if vector is _VI16 else "v16i32"
        align = ir.Constant(I32, 2 if vector is _VI16 else 4)
        zero = ir.Constant(vector, [0.0 if vector is F32_LANES else 0] * LANES)
        arguments = [place, align, _mask(builder, args[2]), zero]
        return to_float(builder, call(builder, f"llvm.masked.load.{suffix}.p0", vector, arguments))

    return vec16(array, types.int64, types.int64), generate


@intrinsic
def store(typingctx: Any, array: Any, offset: Any, value: Any) -> Any:
    """Write 16 lanes to array[offset : offset + 16], rounded to the array's type."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = lane_vector(signature.args[0])
        place = pointer(context, builder, signature.args[0], args[0], args[1], vector)
        builder.store(from_float(builder, args[2], vector), place, align=item_bytes(signature.args[0]))
        return context.get_dummy_value()

    return types.none(array, types.int64, vec16), generate


@intrinsic
def store_part(typingctx: Any, array: Any, offset: Any, value: Any, count: Any) -> Any:
    """Write the first `count` lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        vector = lane_vector(signature.args[0])
        place = pointer(context, builder, signature.args[0], args[0], args[1], vector)
        suffix = "v16i16" if vector is _VI16 else "v16f32"
        align = ir.Constant(I32, 2 if vector is _VI16 else 4)
        arguments = [from_float(builder, args[2], vector), place, align, _mask(builder, args[3])]
        call(builder, f"llvm.masked.store.{suffix}.p0", ir.VoidType(), arguments)
        return context.get_dummy_value()

    return types.none(array, types.int64, vec16, types.int64), generate


@intrinsic
def store_digits(typingctx: Any, array: Any, offset: Any, value: Any, count: Any) -> Any:
    """Write the first `count` lanes, to the nearest of -127..127 (ties to even); a NaN gives -127.

    To an int8 array; to a uint8 array plus 128.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = pointer(context, builder, signature.args[0], args[0], args[1], _VI8)
        digits = from_float(builder, args[2], _VI8)
        if not signature.args[0].dtype.signed:
            digits = builder.xor(digits, ir.Constant(_VI8, [ir.Constant(_VI8.element, -128)] * LANES))
        arguments = [digits, place, ir.Constant(I32, 1), _mask(builder, args[3])]
        call(builder, "llvm.masked.store.v16i8.p0", ir.VoidType(), arguments)
        return context.get_dummy_value()

    return types.none(array, types.int64, vec16, types.int64), generate


@intrinsic
def splat(typingctx: Any, scalar: Any) -> Any:
    """All lanes equal to a float32 scalar."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return broadcast(builder, args[0], F32_LANES)

    return vec16(types.float32), generate


def _binary(name: str, emit: Any) -> Any:
    def typing(typingctx: Any, a: Any, b: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            return emit(builder, args[0], args[1])

        return vec16(vec16, vec16), generate

    typing.__name__ = name
    return intrinsic(typing)


add = _binary("add", lambda builder, a, b: builder.fadd(a, b))
sub = _binary("sub", lambda builder, a, b: builder.fsub(a, b))
mul = _binary("mul", lambda builder, a, b: builder.fmul(a, b))
div = _binary("div", lambda builder, a, b: builder.fdiv(a, b))
maximum = _binary("maximum", lambda builder, a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))


@intrinsic
def absolute(typingctx: Any, value: Any) -> Any:
    """Lane-wise |value|."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "llvm.fabs.v16f32", F32_LANES, list(args))

    return vec16(vec16), generate


@intrinsic
def hadamard(typingctx: Any, value: Any) -> Any:
    """The 16 x 16 Hadamard matrix (entries +-1, Sylvester's order) times the lanes."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        found = args[0]
        for step in (1, 2, 4, 8):  # a butterfly: lanes i and i + step become their sum and their difference
            signs = ir.Constant(F32_LANES, [-1.0 if lane & step else 1.0 for lane in range(LANES)])
            order = ir.Constant(I32_LANES, [lane ^ step for lane in range(LANES)])
            partner = builder.shuffle_vector(found, ir.Constant(F32_LANES, ir.Undefined), order)
            found = call(builder, "llvm.fma.v16f32", F32_LANES, [found, signs, partner])
        return found

    return vec16(vec16), generate


@intrinsic
def fma(typingctx: Any, a: Any, b: Any, c: Any) -> Any:
    """Lane-wise a * b + c with one rounding."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return call(builder, "llvm.fma.v16f32", F32_LANES, list(args))

    return vec16(vec16, vec16, vec16), generate


@intrinsic
def lane_sum(typingctx: Any, value: Any) -> Any:
    """Sum of the lanes, pairwise."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _tree(builder, args[0], builder.fadd)

    return types.float32(vec16), generate


@intrinsic
def lane_max(typingctx: Any, value: Any) -> Any:
    """Largest lane."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return _tree(builder, args[0], lambda a, b: builder.select(builder.fcmp_ordered(">", a, b), a, b))

    return types.float32(vec16), generate


@intrinsic
def any_equal(typingctx: Any, a: Any, b: Any) -> Any:
    """Whether any lane of `a` equals that of `b`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        mask = builder.bitcast(builder.fcmp_ordered("==", args[0], args[1]), ir.IntType(LANES))
        return builder.icmp_unsigned("!=", mask, ir.Constant(ir.IntType(LANES), 0))

    return types.boolean(vec16, vec16), generate


@intrinsic
def keep_first(typingctx: Any, value: Any, count: Any, other: Any) -> Any:
    """The first `count` lanes of `value`, the others the scalar `other`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.select(_mask(builder, args[1]), args[0], broadcast(builder, args[2], F32_LANES))

    return vec16(vec16, types.int64, types.float32), generate


@intrinsic
def keep_between(typingctx: Any, value: Any, first: Any, last: Any, other: Any) -> Any:
    """Lanes `first` to before `last` of `value`, the others the scalar `other`."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        kept = builder.and_(_mask(builder, args[2]), builder.not_(_mask(builder, args[1])))
        return builder.select(kept, args[0], broadcast(builder, args[3], F32_LANES))

    return vec16(vec16, types.int64, types.int64, types.float32), generate


@intrinsic
def exp(typingctx: Any, value: Any) -> Any:
    """Lane-wise e**x, relative error below 2e-7; x under -87 gives 0, x over 88 gives e**88.

    Cody-Waite reduction to |r| <= ln(2)/2 and a degree-6 polynomial, as in Cephes `expf`.
    """

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def fused(a: Any, b: Any, c: Any) -> Any:
            return call(builder, "llvm.fma.v16f32", F32_LANES, [a, b, c])

        x = args[0]
        low, high = floats(-87.0), floats(88.0)
        clamped = builder.select(builder.fcmp_ordered(">", x, low), x, low)
        clamped = builder.select(builder.fcmp_ordered("<", clamped, high), clamped, high)
        n = call(builder, "llvm.rint.v16f32", F32_LANES, [builder.fmul(clamped, floats(1.44269504088896341))])
        r = fused(n, floats(-0.693359375), clamped)
        r = fused(n, floats(2.12194440e-4), r)
        p = floats(1.9875691500e-4)
        for coefficient in (1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1):
            p = fused(p, r, floats(coefficient))
        p = fused(p, builder.fmul(r, r), builder.fadd(r, floats(1.0)))
        exponent = builder.shl(builder.add(builder.fptosi(n, I32_LANES), ints(127)), ints(23))
        result = builder.fmul(p, builder.bitcast(exponent, F32_LANES))
        return builder.select(builder.fcmp_ordered("<", x, low), floats(0.0), result)

    return vec16(vec16), generate


def prefetch_line(builder: Any, place: Any, locality: int = 3) -> None:
    """Ask for the cache line at `place` to be brought near (3: into every cache); never faults."""
    kind = ir.FunctionType(ir.VoidType(), [place.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [place, I32(0), I32(locality), I32(1)])  # a read


def prefetch_item(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> None:
    """`prefetch_line` of array[offset]."""
    prefetch_line(builder, pointer(context, builder, array_type, array, offset, ir.IntType(8)))


@intrinsic
def prefetch(typingctx: Any, array: Any, offset: Any) -> Any:
    """Ask for the cache line of array[offset] to be brought near; `offset` may lie outside."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetch_item(context, builder, signature.args[0], args[0], args[1])
        return context.get_dummy_value()

    return types.none(array, types.int64), generate
