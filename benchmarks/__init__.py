"""Time, memory and shape, beside what a user would pick instead: ``python -m benchmarks`` lists its commands."""
