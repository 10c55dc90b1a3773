"""The command `hvdlab`, also as `python -m hvdlab`."""

import sys

EXTRA = "pip install 'hvdlite[labs]'"


def main() -> None:
    """Run the command; where its packages are missing, say in one line which extra has them."""
    try:
        from hvdlab.cli import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "hvdlab":
            raise
        sys.exit(f"hvdlab: {error.name} is not installed: {EXTRA}")
    app(prog_name="hvdlab")


if __name__ == "__main__":
    main()
