"""`triton._C`: what programs take from Triton's compiled part."""
