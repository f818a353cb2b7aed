"""``prefetch(array, row)`` in a kernel: the processor begins to fetch the row, and does not wait for it."""

from __future__ import annotations

import functools
from typing import Any


class Prefetch:
    """LLVM's ``prefetch``, which numba lacks. A row that the array does not have is not an error."""

    def __call__(self, array: Any, row: int) -> None:
        """Nothing, outside of machine code."""

    @functools.cached_property
    def _numba_type_(self) -> Any:
        import numba.core.typing.templates
        import numba.np.arrayobj
        from llvmlite import ir
        from numba.core import cgutils, types
        from numba.extending import intrinsic

        arrays: Any = numba.np.arrayobj
        templates: Any = numba.core.typing.templates
        utilities: Any = cgutils

        @intrinsic
        def prefetch(typing: Any, array: Any, row: Any) -> Any:
            def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
                values = arrays.make_array(signature.args[0])(context, builder, arguments[0])
                stride = utilities.unpack_tuple(builder, values.strides)[0]
                first, number = builder.ptrtoint(values.data, stride.type), builder.mul(arguments[1], stride)
                pointer, flag = ir.IntType(8).as_pointer(), ir.IntType(32)
                of_type = ir.FunctionType(ir.VoidType(), [pointer, flag, flag, flag])
                function = builder.module.declare_intrinsic("llvm.prefetch", [pointer], of_type)
                place = builder.inttoptr(builder.add(first, number), pointer)
                builder.call(function, [place, flag(0), flag(3), flag(1)])
                return context.get_dummy_value()

            return types.void(array, types.int64), generate

        return types.Function(templates.make_intrinsic_template(prefetch, prefetch._defn, "prefetch"))


prefetch = Prefetch()
