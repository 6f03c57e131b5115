-- What a verb needs of its session and its server.

-- Make the commit of this transaction wait for the disk, even if the session has set synchronous_commit to off:
-- otherwise a crash could undo a verb that was acknowledged. Other levels stay as they are.
create or replace function faultline.require_synchronous_commit() returns void
language plpgsql volatile
as $$
begin
  if current_setting('synchronous_commit') = 'off' then
    -- Not a SET clause on the verb: PostgreSQL resets that when the verb returns, which is before the commit.
    perform set_config('synchronous_commit', 'on', true);
  end if;
end
$$;

-- Name the verb that writes now, for the guards; '' when it has finished. A rollback undoes this too.
-- A SET clause on the verb would be simpler, but only a superuser may set a custom parameter there.
create or replace function faultline.set_current_verb(name text) returns void
language plpgsql volatile
as $$
begin
  perform set_config('faultline.verb', set_current_verb.name, true);
end
$$;

-- Raise FL005 in a transaction of another isolation level than READ COMMITTED. There, a look after the lock would see
-- what was there when the transaction began, and a wake-up could be lost.
create or replace function faultline.read_committed(verb text) returns void
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception '% is possible in READ COMMITTED transactions only', read_committed.verb
      using errcode = 'FL005', hint = 'begin the transaction with: isolation level read committed';
  end if;
end
$$;

-- The name of the current run of the server. It changes whenever all sessions end: when the server restarts, when a
-- standby is promoted (it was started at another time), and when a server process crashes (PostgreSQL then replays its
-- log, and the last position replayed changes). Each of these frees the advisory lock of every worker, alive or dead.
create or replace function faultline.server_run() returns text
language sql stable
return extract(epoch from pg_postmaster_start_time())::text || ' ' || coalesce(pg_last_wal_replay_lsn()::text, '-');

-- The cluster and the database, for what is stored by transaction numbers. Kept by the session: to ask reads a file.
create or replace function faultline.cluster() returns text
language plpgsql volatile
as $$
declare
  known text := current_setting('faultline.cluster', true);
begin
  if coalesce(known, '') = '' then
    select c.system_identifier || ' ' || d.oid into known
    from pg_control_system() c cross join pg_database d
    where d.datname = current_database();
    perform set_config('faultline.cluster', known, false);
  end if;
  return known;
end
$$;
