"""Fuzzing: hostile bytes and texts for everything that reads what others wrote."""
