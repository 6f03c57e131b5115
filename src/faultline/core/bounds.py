"""What a value may be, and what it is when nobody says. SQL has the same numbers, and a test compares them."""

from __future__ import annotations

#: Where a job goes, unless it is told otherwise.
QUEUE = "default"
QUEUE_LENGTH_MAX = 100
TASK_LENGTH_MAX = 200
KEY_LENGTH_MAX = 500
STEP_NAME_LENGTH_MAX = 200
TOPIC_LENGTH_MAX = 200
STREAM_NAME_LENGTH_MAX = 200
SIGNAL_NAME_LENGTH_MAX = 200
#: Of the number of a call, such as 3.1.2, with the numbers of the branches around it. The database has room for a few more
#: characters.
CALL_NUMBER_LENGTH_MAX = 180
#: Of what is kept of an error.
ERROR_LENGTH_MAX = 16_384

#: Both ways: lower runs first.
PRIORITY, PRIORITY_MAX = 0, 1000
MAX_ATTEMPTS, ATTEMPTS_MAX = 5, 1000
LEASE_SECONDS, LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 30.0, 0.1, 86_400.0
#: Until a job runs for the first time, or for how long an attempt may take.
DELAY_SECONDS_MAX = 315_360_000.0
#: Until a job that nobody has claimed is cancelled.
EXPIRES_SECONDS_MIN, EXPIRES_SECONDS_MAX = 0.001, 315_360_000.0
#: Times of unique jobs: a period, a debounce and its limit.
UNIQUE_SECONDS_MIN, UNIQUE_SECONDS_MAX = 0.001, 315_360_000.0
#: Until it runs again.
AGAIN_SECONDS_MAX = 31_536_000.0
#: A job never sleeps for less: one that snoozes again and again would keep the database busy with itself.
SNOOZE_SECONDS_MIN = 0.1
#: Years that the database keeps as times of a job: from the first one on, before the last one.
FIRST_YEAR, LAST_YEAR = 1971, 9999
ARGS_BYTES_MAX = RESULT_BYTES_MAX = 1_048_576

#: Of the key of a group.
GROUP_LENGTH_MAX = 200
#: The most jobs at once that can be a limit.
CONCURRENCY_MAX = 1_000_000
#: Of a rate: jobs in a time, tokens of a burst. With the longest time, the slowest has its next token in a thousand years,
#: which is a moment that the database can store.
RATE_MIN, LIMIT_MAX = 0.001, 1_000_000_000
#: The times that a rate may be about: up to a year.
PER_SECONDS_MIN, PER_SECONDS_MAX = 0.000001, 31_536_000.0
#: A group's share beside others.
WEIGHT_MIN, WEIGHT_MAX = 0.001, 1000.0

#: Who did something, and why.
BY_LENGTH_MAX = 200
REASON_LENGTH_MAX = 1000

#: Jobs of a queue that one worker process runs at once, unless it is told otherwise.
CONCURRENCY = 50
#: Queues of a worker that claim in the same moment; further ones wait for a connection, a millisecond or two. With one for
#: each queue, a worker of a hundred would take all that a server has.
CLAIMS_AT_ONCE = 16
#: What jobs of one worker may borrow at once, unless it is told otherwise; further ones wait.
JOB_CONNECTIONS_MAX = 20
#: How long one call of a program waits for the database. Longer than a restart or a failover takes.
TIMEOUT_SECONDS = 30.0

#: Of one flow's job: remembered calls, and bytes of their results.
CALLS_MAX, HISTORY_BYTES_MAX = 10_000, 64 * 1024 * 1024
#: Of one call, and how many are enqueued in one statement.
CHILDREN_MAX, SPAWN_CHUNK = 100_000, 1_000
#: Signals of one job that nobody has received.
SIGNALS_KEPT_MAX = 1_000
STREAM_BYTES_MAX = 16 * 1024 * 1024
#: How long a wait without a limit lasts: nobody may wait for ever without being noticed.
WAIT_SECONDS = 30 * 86_400.0
#: The greatest floor of new tokens, so that these can still grow.
TOKEN_FLOOR_MAX = 4 * 10**18
