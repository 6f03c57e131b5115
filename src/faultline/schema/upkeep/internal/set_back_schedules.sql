-- Bring schedules back whose position is that of a clock that was ahead. No tick of theirs would come until then, and nobody
-- could help that: a position only grows. Ticks from now on count; one that has its job makes no second.
-- A clock that was set back by less than a minute catches up.
create or replace function faultline.set_back_schedules() returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  moment constant timestamptz := faultline.clock();
  one record;
begin
  for one in
    select
      s.id, s.name, s.last_at, greatest(s.since, s.last_at) > moment + interval '1 minute' as is_ahead,
      -- An interval keeps its moments.
      coalesce(w.last - ceil(extract(epoch from w.last - moment) / w.every) * make_interval(secs => w.every), moment) as since
    from faultline.schedules s
    cross join lateral (
      select greatest(s.since, s.last_at) as last, (s.spec ->> 'every')::double precision as every
    ) w
    where s.ended_at is null
      -- After a failure it is looked at again within minutes.
      and (greatest(s.since, s.last_at) > moment + interval '1 minute' or s.look_at > greatest(s.next_at, moment) + interval '10 minutes')
    order by s.id
    for update of s skip locked
  loop
    update faultline.schedules s
    set next_at = case when not one.is_ahead then s.next_at end,
        since = case when one.is_ahead then one.since else s.since end,
        last_at = case when one.is_ahead then (
          select max(k.at) from faultline.ticks k where k.schedule_id = s.id and k.kind = 'tick' and k.at <= moment
        ) else s.last_at end,
        look_at = case when s.paused_at is null then moment end,
        revision = s.revision + 1
    where s.id = one.id;
    perform faultline.schedule_changed(
      one.name, json_build_object('last_at', one.last_at), json_build_object('since', case when one.is_ahead then one.since end),
      faultline.signature('faultline', 'the clock of the database was ahead')
    );
  end loop;
end
$$;
