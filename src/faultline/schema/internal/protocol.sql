-- The version of these definitions, and the oldest version whose clients they still support.
-- A client works if the definitions are not older than the client, and the client is not older than `serves_from`.
--
-- Raise `version` once per release in which a definition or a table changed. Raise `serves_from` only when the definitions stop
-- serving the builds below it: those builds then refuse to start, and must be gone before anybody migrates.
create or replace function faultline.protocol(out version integer, out serves_from integer)
language sql immutable parallel safe
as $$
  select 2, 1
$$;
