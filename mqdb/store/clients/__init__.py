"""Clients that are there, and what is asked of them."""
