-- Start jobs over with other arguments and an empty history, as `ContinueAsNew` asks for. Returns the leases for which nothing was written.
-- Before: the caller holds the leases. After: queued, due now, no owner, the token unchanged, attempts counted from zero; its calls,
-- steps and streams are gone. `args` is a JSON array with the arguments of each, an object.
-- Signals that it has not received are kept: they are for the job, whichever round it is in. So is what others wait for, and what a
-- job of a graph comes after.
-- A signal to one call goes with that call: it answers no question of the next round. What has a key stays, so that it counts
-- once, marked with the token of its round ('7/2': received by call 2 then; '7/': not received).
-- The jobs that it called stay members of its flow, as jobs of call '0.0'.
-- A job with open children is refused (FL002): nobody would wait for them any longer. While those of a call that lost a race
-- are being cancelled, ask again (55P03).
create or replace function faultline.continue_as_new(
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  args jsonb
) returns setof faultline.refusal
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set plan_cache_mode = force_generic_plan
set jit = off
set max_parallel_workers_per_gather = 0
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
  bytes_max constant integer := (select s.args_bytes_max from faultline.settings s);
  done bigint[];
  ids uuid[];
  busy record;
begin
  perform faultline.check_leases(continue_as_new.job_ids, continue_as_new.tokens, continue_as_new.owners);
  if jsonb_typeof(continue_as_new.args) is distinct from 'array'
    or jsonb_array_length(continue_as_new.args) <> cardinality(continue_as_new.job_ids)
    or exists (
      select from jsonb_array_elements(continue_as_new.args) as a (value)
      where jsonb_typeof(a.value) <> 'object' or octet_length(a.value::text) > bytes_max
    )
  then
    raise exception 'args must be a JSON array with one object per lease, each of at most % bytes', bytes_max
      using errcode = 'FL005';
  end if;
  perform faultline.require_synchronous_commit();
  with held as materialized (
    select j.id, l.position
    from unnest(continue_as_new.job_ids, continue_as_new.tokens, continue_as_new.owners) with ordinality as l (job_id, token, owner, position)
    -- Looked up one by one, as in `complete`.
    join faultline.open_jobs j on j.id = any (array[l.job_id])
    where j.fencing_token = l.token and j.lease_owner = l.owner
    for update of j skip locked
  )
  select array_agg(h.position), array_agg(h.id) into done, ids from held h;
  if done is not null then
    select c.job_id, c.outcome into busy
    from faultline.calls c
    where c.job_id = any (ids) and c.kind = 'children' and c.number <> '0.0'
      and faultline.open_child(c.id, 2147483647) is not null
    order by c.outcome is not distinct from 'closed'
    limit 1;
    if busy.outcome = 'closed' then
      raise exception 'job % cannot start over yet: children of a race that is over are being cancelled', busy.job_id
        using errcode = '55P03', hint = 'ask again in a moment';
    elsif busy.job_id is not null then
      raise exception 'job % cannot start over: it has children that have not ended', busy.job_id
        using errcode = 'FL002', hint = 'wait for them first, or enqueue them with job.enqueue, which nobody waits for';
    end if;
    update faultline.open_jobs j
    set state = 'queued',
        lease_owner = null,
        lease_expires_at = null,
        started = false,
        suspended = null,
        attempt = 0,
        reaps = 0,
        next_run_at = faultline.clock(),
        progress = null,
        last_error = null,
        args = (continue_as_new.args -> (i.position::integer - 1))::json
    from unnest(ids, done) as i (id, position)
    where j.id = any (array[i.id]);
    perform faultline.set_current_verb('continue_as_new');
    perform faultline.keep_earlier_children(ids, done, continue_as_new.tokens);
    perform faultline.forget_round(ids, done, continue_as_new.tokens);
    perform faultline.set_current_verb('');
    insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
    select
      faultline.clock(), i.id, 'continued_as_new', continue_as_new.tokens[i.position], continue_as_new.owners[i.position],
      jsonb_build_object('by', 'its task')
    from unnest(ids, done) as i (id, position);
    perform faultline.wake_for(ids);
  end if;
  if coalesce(cardinality(done), 0) < cardinality(continue_as_new.job_ids) then
    return query
      select * from faultline.refuse('continue_as_new', continue_as_new.job_ids, continue_as_new.tokens, continue_as_new.owners, done);
  end if;
end
$$;
