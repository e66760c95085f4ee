"""Checking stores and repairing runs."""
