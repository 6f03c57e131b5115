-- Delete what these jobs have done, for a round without history. See `continue_as_new` for what is kept. `positions` says where the
-- token of each stands in `tokens`.
create or replace function faultline.forget_round(ids uuid[], positions bigint[], tokens bigint[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  delete from faultline.edges e
  where e.call_id = any (array(
    select c.id from faultline.calls c where c.job_id = any (ids) and c.number <> '0.0' and c.kind <> 'after'
  ));
  delete from faultline.calls c where c.job_id = any (ids) and c.number <> '0.0' and c.kind <> 'after';
  delete from faultline.signals s
  where s.job_id = any (ids) and s.key is null and (s.received_by is not null or s.for_call is not null);
  update faultline.signals s
  set received_by = tokens[positions[array_position(ids, s.job_id)]] || '/' || coalesce(s.received_by, '')
  where s.job_id = any (ids) and s.key is not null and (s.received_by is not null or s.for_call is not null)
    and coalesce(strpos(s.received_by, '/'), 0) = 0;
  delete from faultline.streams s where s.job_id = any (ids);
  delete from faultline.steps s where s.job_id = any (ids);
end
$$;
