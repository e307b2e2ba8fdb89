"""Host addresses as typed pointers."""
from __future__ import annotations

from numba import types
from numba.extending import intrinsic


def _cast(target: types.Type):
    @intrinsic
    def cast(typingctx, address):
        def codegen(context, builder, signature, args):
            return builder.inttoptr(args[0], context.get_value_type(types.CPointer(target)))
        return types.CPointer(target)(types.int64), codegen
    return cast


as_int64, as_int32, as_uint8 = _cast(types.int64), _cast(types.int32), _cast(types.uint8)
