"""PTX text: the builder, one emitter per op, the instruction table and the parser."""
