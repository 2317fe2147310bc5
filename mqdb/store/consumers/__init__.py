"""Consumer groups: subscriptions, offsets, locks, and failed messages."""
