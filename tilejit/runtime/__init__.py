"""From PTX to results: arrays, the driver, assembling, caching, signatures and launches."""
