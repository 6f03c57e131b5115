"""Python's end of the protocol, and the only importer of psycopg. Blocking and async programs share every statement."""
