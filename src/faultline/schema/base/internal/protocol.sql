-- The version of these definitions, and the oldest version whose clients they still support.
-- A client works if the definitions are not older than the client, and the client is not older than `serves_from`.
--
-- Raise `version` once per release in which a definition or a table changed. Raise `serves_from` only when the
-- definitions no longer support the builds below it: those refuse to start then, so stop them before you migrate.
create or replace function faultline.protocol(out version integer, out serves_from integer)
language sql immutable parallel safe
as $$
  select 1, 1
$$;
