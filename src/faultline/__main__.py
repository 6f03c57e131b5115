"""`python -m faultline` is `faultline`, for environments whose scripts are not on the path."""

from faultline.cli.main import main

main()
