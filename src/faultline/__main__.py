"""The command `faultline`, and `python -m faultline` for environments whose scripts are not on the path."""

import sys


def main() -> None:
    try:
        from faultline.cli.main import main as run  # noqa: PLC0415 - an extra
    except ModuleNotFoundError as error:
        if error.name not in {"click", "rich", "typer"}:
            raise
        sys.exit(
            f"faultline: {error.name} is not installed; for the command line, run: pip install 'faultline-queue[cli]'"
            " (with the dashboard and a private PostgreSQL: 'faultline-queue[all]')"
        )
    run()


if __name__ == "__main__":
    main()
