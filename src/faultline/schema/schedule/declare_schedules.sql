-- Write what the code of a worker says about schedules. Returns what became of each declaration.
-- `declarations`: [{"name", "digest", "was", "spec"}], with `spec` as for set_schedule. `was` is the name before, or a list of
-- those before, the last one first: see names_before.
--   made      there was none: it is there now
--   known     it is there as declared
--   taken     it was declared otherwise by code that no worker has any more: this declaration is in force now
--   waiting   it is declared otherwise by code that a living worker has: nothing was changed. Ask again later
-- So in a rolling deployment the old code is in force until its last worker is gone; no two take turns, and none stops for good.
-- The position stays where it is as long as the rule does. What a person has set stays in force.
create or replace function faultline.declare_schedules(worker text, declarations json) returns table (
  name text,
  outcome text
)
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  signed constant jsonb := faultline.signature('worker ' || left(declare_schedules.worker, 100), '@app.schedule');
  names constant text[] := array(select d ->> 'name' from json_array_elements(declare_schedules.declarations) d);
  renamed constant text[] := array(
    select unnest(faultline.names_before(d)) from json_array_elements(declare_schedules.declarations) d
  );
  mine text[];
  waiting text[];
  said record;
  was faultline.schedules;
  at timestamptz;
begin
  perform faultline.require_synchronous_commit();
  update faultline.workers w
  set schedules = array(
    select unnest(w.schedules) union select d ->> 'digest' from json_array_elements(declare_schedules.declarations) d order by 1
  )
  where w.id = declare_schedules.worker
  returning w.schedules into mine;
  mine := mine || array(select d ->> 'digest' from json_array_elements(declare_schedules.declarations) d);
  -- In one order by all, so that workers that start together do not deadlock, whatever their code says.
  perform from faultline.schedules s
  where s.name = any (names || renamed) or s.was = any (names)
  order by s.id
  for update;
  for said in select * from faultline.declarations_in_order(declare_schedules.declarations, names) loop
    name := said.name;
    perform faultline.check_schedule(said.name, said.spec);
    if coalesce(length(said.digest), 0) not between 1 and 100 then
      raise exception 'schedule % is refused: its declaration has no digest', said.name using errcode = 'FL005';
    end if;
    was := faultline.find_declared(said.name, said.was, names, mine);
    at := faultline.clock();
    if was.id is null then
      insert into faultline.schedules as s (
        name, spec, declared, digest, was, since, look_at, created_at, changed_at, changed_by, reason
      )
      values (
        said.name, said.spec, said.spec, said.digest, said.was, faultline.schedule_since(said.spec, at), at, at, at,
        signed ->> 'by', signed ->> 'reason'
      )
      on conflict (name) do nothing;
      outcome := case when found then 'made' else 'waiting' end;
    elsif was.digest = said.digest and was.name = said.name then
      outcome := 'known';
    elsif faultline.live_digest(was.digest) and was.digest <> said.digest then
      outcome := 'waiting';
    else
      outcome := 'taken';
      if was.digest is not null and not was.overridden then
        perform faultline.change_schedule(was.id, said.spec, at);
      end if;
      update faultline.schedules s
      set name = said.name,
          declared = said.spec,
          digest = said.digest,
          was = said.was,
          -- What somebody made at run time under this name stays in force.
          overridden = s.overridden or s.digest is null and s.spec::jsonb <> said.spec::jsonb,
          revision = s.revision + 1,
          changed_by = signed ->> 'by',
          reason = signed ->> 'reason'
      where s.id = was.id;
    end if;
    if outcome in ('made', 'taken') then
      perform faultline.schedule_changed(said.name, was.declared, said.spec, signed);
    end if;
    if outcome = 'waiting' then
      waiting := waiting || coalesce(was.name, said.name);
    end if;
    return next;
  end loop;
  -- So that people see who waits: in a deployment for a moment, with two programs that use one name for ever.
  update faultline.workers w
  set waiting_schedules = array(
    select n from unnest(w.waiting_schedules) n where n <> all (names || renamed) union select unnest(waiting) order by 1
  )
  where w.id = declare_schedules.worker and (waiting is not null or w.waiting_schedules && (names || renamed));
end
$$;
