"""`Admin` administers brokers from a program or the command line. Each subject has a module."""
