-- Record in the journal what somebody did to a schedule. See signature. Without arguments of its job: these may be large.
create or replace function faultline.schedule_changed(name text, was json, value json, signed jsonb) returns void
language sql volatile
as $$
  insert into faultline.journal (at, event, detail)
  values (
    faultline.clock(), 'setting_changed',
    jsonb_build_object(
      'schedule', schedule_changed.name, 'setting', 'schedule ' || schedule_changed.name,
      'was', schedule_changed.was::jsonb #- '{job,args}', 'value', schedule_changed.value::jsonb #- '{job,args}'
    ) || signed
  );
$$;
