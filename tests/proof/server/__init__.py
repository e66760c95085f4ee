"""Disturbing a real PostgreSQL server, and the way to it, while runs are driven."""
