-- The transactions of a snapshot that may still write here, and the caller's own, which may write more.
-- Where many are open, those that are known to be of other databases are left out: they cannot write here.
create or replace function faultline.open_xids(snapshot pg_snapshot, below xid8) returns xid8[]
language plpgsql volatile
as $$
declare
  found xid8[] := array(select x.xid from pg_snapshot_xip(snapshot) as x (xid) where x.xid < open_xids.below);
begin
  if cardinality(found) > 50 then
    found := array(
      select f.xid
      from unnest(found) as f (xid)
      where f.xid::xid::text not in (
        select a.backend_xid::text from pg_stat_activity a
        where a.backend_xid is not null and a.datname <> current_database()
        union all
        select p.transaction::text from pg_prepared_xacts p where p.database <> current_database()
      )
    );
  end if;
  return found || pg_current_xact_id();
end
$$;
