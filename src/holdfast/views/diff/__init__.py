"""What differs between two values, two states, two moments of runs."""
