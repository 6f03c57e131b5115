"""The commands, each module one of them or a group."""
