"""The command line. One small module per group of commands; everything heavy is imported when a command runs."""
