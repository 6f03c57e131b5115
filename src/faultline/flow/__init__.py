"""The flow engine: what a program calls through its job. Each call is found recorded, recorded, or waited for."""
