"""Speed, measured: the demo, the benchmark, and the timing of the CPU kernel."""
