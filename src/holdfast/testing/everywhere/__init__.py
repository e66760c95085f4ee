"""A workflow killed at every boundary and resumed: what is tried, what is checked, and what is said about it."""
