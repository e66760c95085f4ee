"""Capsules: one run in one file, to be carried to any store on any machine."""
