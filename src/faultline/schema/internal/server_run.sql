-- Names the current run of the server: the time from one end of all its sessions to the next. The name changes when the
-- server restarts, when a standby is promoted (another server, which was started at another time), and when PostgreSQL ends
-- all sessions because one of its processes crashed: it then replays its log again, and the last position replayed differs.
-- Every worker's advisory lock is gone after each of these, whether the worker lives or not.
create or replace function faultline.server_run() returns text
language sql stable
return extract(epoch from pg_postmaster_start_time())::text || ' ' || coalesce(pg_last_wal_replay_lsn()::text, '-');
