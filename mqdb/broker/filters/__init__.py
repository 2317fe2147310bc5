"""Check a filter, and try one."""
