"""The vocabulary: messages, topics, groups, delays, and what else all layers speak of. No I/O."""
