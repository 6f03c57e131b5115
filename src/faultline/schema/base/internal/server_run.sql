-- The name of the current run of the server. It changes whenever all sessions end: when the server restarts, when a
-- standby is promoted (it was started at another time), and when a server process crashes (PostgreSQL then replays its
-- log, and the last position replayed changes). Each of these frees the advisory lock of every worker, alive or dead.
create or replace function faultline.server_run() returns text
language sql stable
return extract(epoch from pg_postmaster_start_time())::text || ' ' || coalesce(pg_last_wal_replay_lsn()::text, '-');
