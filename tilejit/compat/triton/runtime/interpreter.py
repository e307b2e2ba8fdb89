"""`triton.runtime.interpreter`: there is none; without a GPU kernels run in tilejit's emulator."""
