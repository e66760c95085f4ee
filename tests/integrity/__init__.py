"""Tests of checking stores and repairing runs."""
