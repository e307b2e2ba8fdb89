"""Other packages' names for tilejit, so that programs written for them run unchanged."""
