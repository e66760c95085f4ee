"""More than one process: workers that share a store's runs."""
