"""Exceptions that come between two lines of a run: where they are raised, what runs, what is checked."""
