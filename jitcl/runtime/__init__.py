"""From a plan to results: the kernel cache, memory planning, execution."""
