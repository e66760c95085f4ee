"""Power cuts: what a run wrote and synced is recorded, and every disk that a power cut may leave is opened."""
