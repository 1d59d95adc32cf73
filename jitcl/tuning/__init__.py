"""The search for faster kernels among the candidates of templates (docs/tuning.md)."""
