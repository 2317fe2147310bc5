"""Pull, own queues, commit, reset, send back."""
