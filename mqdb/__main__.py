"""`python -m mqdb` is the command `mqdb`."""

from mqdb.cli import main

if __name__ == "__main__":
    main()
