"""There is none: see the emulator."""
