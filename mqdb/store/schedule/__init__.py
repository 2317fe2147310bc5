"""All that waits for a time: delay levels, timers, and recurring sends."""
