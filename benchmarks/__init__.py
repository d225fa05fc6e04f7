"""Figures: `python -m benchmarks.run` against real servers, `pytest benchmarks --benchmark-enable`."""
