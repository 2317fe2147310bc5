"""What people do to a broker from outside: `Admin`, with a module for each subject."""
