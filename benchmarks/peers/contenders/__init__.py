"""Those who race: one module each, with a `Race` that prepares every workload in its own manner."""
