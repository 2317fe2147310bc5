"""Client programs, one for each library. A program sends or consumes, and prints one line of JSON at its end."""
