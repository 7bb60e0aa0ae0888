"""The benchmarks: one script for each section of RESULTS.md. Each runs as a module and as a script."""
