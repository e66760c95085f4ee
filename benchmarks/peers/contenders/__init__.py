"""The contenders: one module each, with a `Race` that prepares every workload."""
