"""Checks of the project that no existing tool offers."""
