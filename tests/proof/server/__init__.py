"""Disturbances of a real PostgreSQL server, and of the connection to it, while runs execute."""
