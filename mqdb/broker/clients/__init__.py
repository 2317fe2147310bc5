"""Come, stay, go, and be asked."""
