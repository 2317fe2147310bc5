"""Lite pull consumers, which poll: `lite_pull_consumer` is where to begin."""
