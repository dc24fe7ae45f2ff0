"""`python -m semlabel`: the command line where the script is not on the path."""

from semlabel.cli import main

if __name__ == "__main__":
    main()
