"""Create, change and find topics."""
