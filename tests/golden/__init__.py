"""Stores that earlier versions wrote, and what is in them."""
