"""`python -m freshq`, where the command is not on the path."""

from freshq.cli.__main__ import main

if __name__ == "__main__":
    main()
