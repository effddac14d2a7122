"""Vectors of eight numbers for compiled loops: explicit use of the processor's vector units.

A compiler vectorises only long loops, and pays for the remainders at their ends. Rows of 50
features and groups of 8 users are too short for that. Inside a compiled function, `Lanes` are eight
numbers in double precision, and `Rows` are eight Lanes. +, -, * and / are elementwise, and Rows *
Lanes multiplies every row. Processors with narrower vectors need several instructions for it.

Memory is read through pointers, which keep nothing alive: `first` is for arrays that came as
arguments, never for arrays that the same function made.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils
from numba.extending import models, overload, register_model

from privfed.foundation.compilation import compiled

WIDTH = 8
VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
Values = list[ir.Value]
Code = tuple[Any, Callable[..., Any]]

intrinsic: Any = extending.intrinsic
"""Decorator of functions that are called with one argument less than they are written with."""


class Lanes(types.Type):
    """Eight numbers."""

    def __init__(self) -> None:
        super().__init__(name="Lanes")


class Rows(types.Type):
    """Eight times eight numbers."""

    def __init__(self) -> None:
        super().__init__(name="Rows")


lanes, many = Lanes(), Rows()


@register_model(Lanes)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)


@register_model(Rows)
class _RowsModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, ir.ArrayType(VECTOR, WIDTH))


def _vector(context: Any, builder: ir.IRBuilder, pointer: Any, at: ir.Value) -> ir.Value:
    """Return the eight numbers at an address, in double precision."""
    stored = context.get_value_type(pointer.dtype)
    address = builder.bitcast(at, ir.VectorType(stored, WIDTH).as_pointer())
    found = builder.load(address, align=pointer.dtype.bitwidth // 8)
    return found if stored == ir.DoubleType() else builder.fpext(found, VECTOR)


def _packed(builder: ir.IRBuilder, vectors: Values) -> ir.Value:
    rows = ir.Constant(ir.ArrayType(VECTOR, WIDTH), ir.Undefined)
    for i, vector in enumerate(vectors):
        rows = builder.insert_value(rows, vector, i)
    return rows


def _unpacked(builder: ir.IRBuilder, rows: ir.Value) -> Values:
    return [builder.extract_value(rows, i) for i in range(WIDTH)]


def _shuffled(builder: ir.IRBuilder, a: ir.Value, b: ir.Value, places: list[int]) -> ir.Value:
    """Return some of the 16 numbers of two vectors."""
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), places))


@intrinsic
def first(_typing, array):  # type: ignore[no-untyped-def]
    """Return a pointer to the first number of a contiguous array."""

    def code(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return context.make_array(signature.args[0])(context, builder, values[0]).data

    return types.CPointer(array.dtype)(array), code


@intrinsic
def after(_typing, pointer, count):  # type: ignore[no-untyped-def]
    """Return the pointer advanced by `count` elements."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        return builder.gep(values[0], [values[1]])

    return pointer(pointer, types.intp), code


@intrinsic
def get(_typing, pointer, index):  # type: ignore[no-untyped-def]
    """Return the number at `index`."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        return builder.load(builder.gep(values[0], [values[1]]))

    return pointer.dtype(pointer, types.intp), code


@intrinsic
def put(_typing, pointer, index, value):  # type: ignore[no-untyped-def]
    """Write a number at `index`."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        builder.store(values[2], builder.gep(values[0], [values[1]]))

    return types.void(pointer, types.intp, pointer.dtype), code


@intrinsic
def load_lanes(_typing, pointer, index):  # type: ignore[no-untyped-def]
    """Return eight adjacent numbers, from `index` on."""

    def code(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return _vector(context, builder, signature.args[0], builder.gep(values[0], [values[1]]))

    return lanes(pointer, types.intp), code


@intrinsic
def load_rows(_typing, pointer, index, stride):  # type: ignore[no-untyped-def]
    """Return eight times eight adjacent numbers, from index, index + stride, ... on."""

    def code(context, builder, signature, values):  # type: ignore[no-untyped-def]
        places = [builder.gep(values[0], [values[1]])]
        for _ in range(WIDTH - 1):
            places.append(builder.gep(places[-1], [values[2]]))
        return _packed(
            builder, [_vector(context, builder, signature.args[0], place) for place in places]
        )

    return many(pointer, types.intp, types.intp), code


@intrinsic
def store(_typing, pointer, index, value):  # type: ignore[no-untyped-def]
    """Write eight adjacent numbers, from `index` on."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        address = builder.bitcast(builder.gep(values[0], [values[1]]), VECTOR.as_pointer())
        builder.store(values[2], address, align=8)

    return types.void(types.CPointer(types.float64), types.intp, lanes), code


@intrinsic
def prefetch(_typing, pointer, index):  # type: ignore[no-untyped-def]
    """Load the cache line of a number that will be needed soon."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        number = ir.IntType(32)
        address = builder.bitcast(builder.gep(values[0], [values[1]]), ir.IntType(8).as_pointer())
        kind = ir.FunctionType(ir.VoidType(), [address.type, number, number, number])
        ask = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        # Arguments: read access, second-level cache, data.
        builder.call(ask, [address, number(0), number(2), number(1)])

    return types.void(pointer, types.intp), code


@intrinsic
def fill(_typing, number):  # type: ignore[no-untyped-def]
    """Return the same number eight times."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        nothing = ir.Constant(VECTOR, ir.Undefined)
        return _shuffled(
            builder,
            builder.insert_element(nothing, values[0], ir.IntType(32)(0)),
            nothing,
            [0] * WIDTH,
        )

    return lanes(types.float64), code


@intrinsic
def zero_rows(_typing):  # type: ignore[no-untyped-def]
    """Return eight times eight zeros."""

    def code(_context, builder, _signature, _values):  # type: ignore[no-untyped-def]
        return _packed(builder, [ir.Constant(VECTOR, [0.0] * WIDTH)] * WIDTH)

    return many(), code


@intrinsic
def totals(_typing, rows):  # type: ignore[no-untyped-def]
    """Return the sum of every row; neighbouring rows are added together to use all lanes."""

    def code(_context, builder, _signature, values):  # type: ignore[no-untyped-def]
        def added(two, *places):  # type: ignore[no-untyped-def]
            return builder.fadd(*(_shuffled(builder, two[0], two[1], each) for each in places))

        rows = _unpacked(builder, values[0])
        pairs = [
            added(rows[i : i + 2], [0, 8, 2, 10, 4, 12, 6, 14], [1, 9, 3, 11, 5, 13, 7, 15])
            for i in (0, 2, 4, 6)
        ]
        fours = [
            added(pairs[i : i + 2], [0, 1, 8, 9, 4, 5, 12, 13], [2, 3, 10, 11, 6, 7, 14, 15])
            for i in (0, 2)
        ]
        return added(fours, [0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 6, 7, 12, 13, 14, 15])

    return lanes(many), code


def _function(name: str, arguments: int) -> Code:
    """Return one of LLVM's functions of vectors."""

    def code(_context: Any, builder: ir.IRBuilder, _signature: Any, values: Values) -> ir.Value:
        kind = ir.FunctionType(VECTOR, [VECTOR] * arguments)
        return builder.call(
            cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{WIDTH}f64"), values
        )

    return lanes(*[lanes] * arguments), code


@intrinsic
def root(_typing, a):  # type: ignore[no-untyped-def]
    """Return square roots."""
    return _function("sqrt", 1)


@intrinsic
def smaller(_typing, a, b):  # type: ignore[no-untyped-def]
    """Return the elementwise minimum; NaN if either number is."""
    return _function("minimum", 2)


@intrinsic
def larger(_typing, a, b):  # type: ignore[no-untyped-def]
    """Return the elementwise maximum; NaN if either number is."""
    return _function("maximum", 2)


def _define(symbol: Any, name: str) -> None:
    """Define an operator for Lanes, for Rows, and for Rows with Lanes."""

    @intrinsic
    def apply(_typing, a, b):  # type: ignore[no-untyped-def]
        def code(_context, builder, signature, values):  # type: ignore[no-untyped-def]
            done = getattr(builder, name)
            if signature.return_type == lanes:
                return done(*values)
            sides = [
                _unpacked(builder, value) if kind == many else [value] * WIDTH
                for kind, value in zip(signature.args, values, strict=True)
            ]
            return _packed(builder, [done(*pair) for pair in zip(*sides, strict=True)])

        return (lanes if a == b == lanes else many)(a, b), code

    @overload(symbol)
    def operation(a, b):  # type: ignore[no-untyped-def]
        if isinstance(a, Lanes | Rows) and isinstance(b, Lanes | Rows):
            return lambda a, b: apply(a, b)
        return None


for _symbol, _name in (
    (operator.add, "fadd"),
    (operator.sub, "fsub"),
    (operator.mul, "fmul"),
    (operator.truediv, "fdiv"),
):
    _define(_symbol, _name)


@compiled
def aligned(count):  # type: ignore[no-untyped-def]
    """Return zeros (count,) that begin at a cache line, since reads across its edge are slow."""
    raw = np.zeros(count + WIDTH)
    start = -raw.ctypes.data % (8 * WIDTH) // 8
    return raw[start : start + count]
