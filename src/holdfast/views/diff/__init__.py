"""What differs between two values, two states, two checkpoints of runs."""
