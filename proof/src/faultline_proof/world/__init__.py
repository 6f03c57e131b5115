"""The simulated world: the real client, worker and reaper on many simulated hosts, under virtual time, on a real PostgreSQL.

Time moves only when everybody waits for it, all chance comes from one seed, and everything happens in one thread: so one
seed is one history, and running it twice gives the same digest. What is simulated is only what lies between the hosts and
the database: wires that are slow or cut, hosts that crash and freeze, clocks that are wrong, a server that goes away.
"""
