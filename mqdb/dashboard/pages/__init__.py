"""The pages, a module for each subject. Its `PAGES` say where they are, below the broker."""
