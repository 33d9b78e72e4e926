"""Measurements of speed: the demo, the benchmarks, and timings of single parts."""
