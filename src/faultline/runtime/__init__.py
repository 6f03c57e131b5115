"""What runs on top of the protocol: tasks and the client."""
