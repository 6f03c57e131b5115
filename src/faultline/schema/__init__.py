"""The protocol itself, as SQL: tables, one function per verb, guards, views, roles, invariants."""
