"""The log: records, their index, histories, and what is read of them in bulk."""
