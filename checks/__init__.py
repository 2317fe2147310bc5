"""Checks of the project that no tool has."""
