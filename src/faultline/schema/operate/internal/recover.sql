-- A step of recover.

-- Have the numbers of rows go on above those that are there. Logical replication copies the rows of a table but not its sequence: no verb
-- could insert into these.
create or replace function faultline.advance_sequences() returns void
language plpgsql volatile
as $$
declare
  counted bigint;
  numbered text;
  sequence regclass;
begin
  foreach numbered in array array['journal', 'calls', 'signals', 'nudges', 'sweeps', 'schedules'] loop
    sequence := pg_get_serial_sequence('faultline.' || numbered, 'id');
    counted := coalesce(pg_sequence_last_value(sequence), 0);
    execute format('select setval($1, e.id) from (select max(l.id) as id from faultline.%I l) e where e.id > $2', numbered)
      using sequence, counted;
  end loop;
end
$$;
