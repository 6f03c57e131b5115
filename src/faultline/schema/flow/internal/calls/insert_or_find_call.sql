-- The call of one wait of a race. It is stored if it is not known, but for a step: one that has none has failed, and that is not
-- on record yet.
create or replace function faultline.insert_or_find_call(
  job_id uuid,
  fencing_token bigint,
  at timestamptz,
  number text,
  kind text,
  name text,
  digest text,
  seconds float8,
  until timestamptz,
  fresh boolean,
  out call faultline.calls
)
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  ends constant timestamptz := coalesce(until, at + make_interval(secs => seconds));
begin
  select c.* into call
  from faultline.calls c
  where c.job_id = insert_or_find_call.job_id and c.number = insert_or_find_call.number;
  if call.id is not null then
    perform faultline.same_call(call, kind, name, digest);
    if call.until is null and call.ended_at is null then
      -- A retry has opened it again.
      update faultline.calls c set until = ends where c.id = call.id;
      call.until := ends;
    end if;
  elsif kind in ('step', 'atomic') then
    call.number := number;
    call.kind := kind;
  else
    perform faultline.check_name('the name of a call', name, 200, trimmed => false);
    insert into faultline.calls as c (job_id, number, kind, name, digest, fencing_token, begun_at, until, fresh)
    values (job_id, number, kind, name, digest, fencing_token, at, ends, fresh)
    returning c.* into call;
  end if;
end
$$;
