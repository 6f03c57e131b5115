"""Pools of connections: who may open one, and who waits."""
