-- Calls of a program, and what is kept and forgotten of them.

-- Raise FL005 unless a program may record this call: see record.
create or replace function faultline.check_call(
  job_id uuid, number text, kind text, name text, outcome text, until_seconds float8
) returns void
language plpgsql immutable
as $$
begin
  if (
    number ~ '^[0-9]{1,9}([.][0-9]{1,9})*$'
    and length(number) <= 200
    and length(name) between 1 and 200
    and not faultline.is_unreadable(name)
    and kind is not null
  ) is not true then
    raise exception 'job %: a call needs a number such as 3 or 3.1, a kind, and a name of 1 to 200 characters without control characters; not "%", %, "%"',
      job_id, number, kind, name using errcode = 'FL005';
  elsif until_seconds not between 0 and 315360000 then
    raise exception 'job %: call %, % "%", cannot wait for % seconds; it can for 0 to 315360000',
      job_id, number, kind, name, until_seconds using errcode = 'FL005';
  elsif outcome <> 'closed' and kind in ('signal', 'children', 'watch', 'after') then
    -- How these end is for the database to say, by what it has under the lock.
    raise exception 'job %: call %, % "%", cannot be recorded as %; % says how it ends',
      job_id, number, kind, name, outcome, case kind when 'signal' then 'receive' else 'collect_outcomes' end
      using errcode = 'FL005';
  end if;
end
$$;

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

-- Raise FL005 if a call stands in the history as another one than the program makes now: the program has changed.
create or replace function faultline.same_call(known faultline.calls, kind text, name text, digest text) returns void
language plpgsql immutable
as $$
begin
  if (known.kind, known.name) is distinct from (same_call.kind, same_call.name) then
    raise exception 'job %: the program has changed: call % was % "%" and is % "%" now',
      known.job_id, known.number, known.kind, known.name, same_call.kind, same_call.name
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was written. Bring the old code back, or guard the change with job.patched.';
  -- Of arguments that named the job that this one was forked from, see fork, the program looks itself.
  elsif known.digest is distinct from same_call.digest and known.digest !~ '(^|:)~(/|$)' then
    raise exception 'job %: the program has changed: call %, % "%", has other arguments now',
      known.job_id, known.number, known.kind, known.name
      using errcode = 'FL005', detail = 'program_changed',
        hint = 'Nothing was written. Give it the same arguments each time, or guard the change with job.patched.';
  end if;
end
$$;

-- An attempt writes to a stream for the first time: keep what its program does not write again, and delete the rest.
-- Before: `faultline.verb` is stream, and the caller holds the lease. After: what is kept has no gaps. What moved has the token of
-- this attempt, so that readers read it again.
--
-- A program does not run again what stands before its last call on record. So an item is kept in these cases:
--   a branch around it has a later call on record;
--   a branch or a race around it has ended;
--   the step that wrote it has ended in the same attempt; a step that ran again wrote anew.
create or replace function faultline.keep_written(job_id uuid, name text, token bigint) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  with known as materialized (
    select c.number, c.kind, c.fencing_token, c.ended_at is not null as has_ended, c.doubtful is true as is_doubtful
    from faultline.calls c
    where c.job_id = keep_written.job_id and c.kind not in ('after', 'retry')
  ),
  last_of as materialized (
    select array_to_string(p.path[:i.depth - 1], '.') as branch, max(p.path[i.depth]::bigint) as last
    -- The program may not make a doubtful one again.
    from (select string_to_array(k.number, '.') as path from known k where not k.is_doubtful) p
    cross join lateral generate_subscripts(p.path, 1) as i (depth)
    group by 1
  ),
  ended as materialized (
    select k.number, case when k.kind = 'race' then 0 else k.fencing_token end as since
    from known k
    where k.has_ended and k.kind in ('step', 'atomic', 'race')
    union all
    -- See Written: a branch that has ended while others wait.
    select left(k.number, -4), 0 from known k where k.kind = 'patch' and k.number like '%.0.0'
  ),
  final as materialized (
    select s.position, bool_or(coalesce(r.made::numeric < l.last, false) or coalesce(s.fencing_token >= e.since, false)) as is_kept
    from faultline.streams s
    cross join lateral jsonb_each_text(s.reach) as r (branch, made)
    left join last_of l on l.branch = r.branch
    left join ended e on e.number = r.branch
    where s.job_id = keep_written.job_id and s.name = keep_written.name
    group by s.position
  ),
  behind as materialized (
    select s.position, s.chunk, s.reach, s.written_at, f.is_kept, jsonb_array_length(s.chunk) as items
    from faultline.streams s
    join final f on f.position = s.position
    where s.job_id = keep_written.job_id and s.name = keep_written.name
      and s.position >= (select min(g.position) from final g where not g.is_kept)
  ),
  gone as (
    delete from faultline.streams s
    where s.job_id = keep_written.job_id and s.name = keep_written.name and s.position >= (select min(b.position) from behind b)
  ),
  moved as (
    select b.*, sum(b.items) over so_far as so_many, sum(octet_length(b.chunk::text)) over so_far as added
    from behind b
    where b.is_kept
    window so_far as (order by b.position)
  ),
  first as (
    select b.position, coalesce((
      select max(s.bytes)
      from faultline.streams s
      where s.job_id = keep_written.job_id and s.name = keep_written.name and s.position < b.position
    ), 0) as bytes
    from (select min(b.position) as position from behind b) b
  )
  insert into faultline.streams (job_id, name, fencing_token, position, chunk, bytes, begins_at, reach, written_at)
  select
    keep_written.job_id, keep_written.name, keep_written.token, f.position + m.so_many - m.items, m.chunk, f.bytes + m.added,
    f.position + (select max(l.so_many) from moved l), m.reach, m.written_at
  from moved m
  cross join first f;
end
$$;

-- The calls that the program gave up when one of these failed: it waited for them together. What lost a race is not among
-- them: that is decided, whatever becomes of the winner.
create or replace function faultline.closed_with(job_id uuid, stopped bigint[]) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  return array(
    select c.id
    from faultline.calls c
    where c.job_id = closed_with.job_id and c.outcome = 'closed' and c.number !~ '^0[.]0([.]|$)'
      and c.ended_moment = any (array(
        -- They are recorded with what the program called next.
        select min(d.ended_moment)
        from faultline.calls s
        join faultline.calls d on d.job_id = s.job_id and d.outcome = 'closed' and d.ended_moment > s.ended_moment
        where s.id = any (closed_with.stopped)
          and not exists (
            select from faultline.calls r where r.job_id = d.job_id and r.kind = 'race' and r.ended_moment = d.ended_moment
          )
        group by s.id
      ))
  );
end
$$;

-- The calls whose failure ended this job: their jobs had failed, a step had, or a signal did not come in time or did not fit.
-- That is history which a retry opens again.
--   the error came out of the program, as it was or as the cause of another one: `stopped_by` of the job
--   or the program called nothing after it, in its branch or in one around it
-- Any other failure is one past which the program went, and stays. By the order of the records, never by the clock.
create or replace function faultline.stopped_at(job_id uuid) returns bigint[]
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  named constant text[] := (select j.stopped_by from faultline.open_jobs j where j.id = stopped_at.job_id);
begin
  return array(
    select c.id
    from faultline.calls c
    where c.job_id = stopped_at.job_id
      and case
        when c.kind = 'signal' then c.ended_at is not null and c.error is not null
        else c.kind in ('children', 'watch', 'step', 'atomic') and c.outcome = 'failed'
      end
      -- A job whose saga has failed only undoes: nothing of what is undone begins anew.
      and not exists (
        select from faultline.calls s where s.job_id = stopped_at.job_id and s.kind = 'saga' and s.outcome = 'failed'
      )
      and (
        coalesce(c.number = any (named), false)
        or c.kind not in ('step', 'atomic') and not exists (
          select
          from faultline.calls d
          where d.job_id = stopped_at.job_id
            and d.id > c.ended_moment
            -- That it had won a race is recorded after its end.
            and d.kind <> 'race'
            and starts_with(c.number, regexp_replace(d.number, '[0-9]+$', ''))
        )
      )
  );
end
$$;

-- Take calls out of the history of their jobs: the program will make other ones there. Before: `faultline.verb` is retry.
-- After: their numbers are free. Whoever prunes a flow finds its jobs by the edges of calls, so a call of children stays,
-- under a number of no call of the program ('0.0.7'), and its open children are swept. What a signal had brought is not
-- received again: received_by then names the attempt too.
create or replace function faultline.forget_calls(call_ids bigint[]) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.signals s
  set received_by = c.fencing_token || '/' || c.number
  from faultline.calls c
  where c.id = any (call_ids) and c.kind = 'signal' and s.job_id = c.job_id and s.received_by = c.number;
  insert into faultline.sweeps (job_id, call_id, reason)
  select c.job_id, c.id, 'closed' from faultline.calls c where c.id = any (call_ids) and c.kind = 'children';
  update faultline.calls c
  set number = '0.0.' || c.id, awaited = false, doubtful = null, ended_at = coalesce(c.ended_at, faultline.clock()), outcome = 'closed'
  where c.id = any (call_ids) and c.kind = 'children';
  delete from faultline.edges e
  where e.call_id = any (array(select c.id from faultline.calls c where c.id = any (call_ids) and c.kind <> 'children'));
  delete from faultline.calls c where c.id = any (call_ids) and c.kind <> 'children';
end
$$;

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

-- Forget a call that is doubtful since a retry, what is inside of it, and all that is doubtful and comes after it in its branch.
-- Before: the caller holds the lease of the job.
create or replace function faultline.forget_doubtful(job_id uuid, number text) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  branch constant text := regexp_replace(forget_doubtful.number, '[0-9]+$', '');
  position constant numeric := substr(forget_doubtful.number, length(branch) + 1);
begin
  perform faultline.set_current_verb('retry');
  perform faultline.forget_calls(array(
    select c.id
    from faultline.calls c
    where c.job_id = forget_doubtful.job_id
      and c.doubtful
      and starts_with(c.number, branch)
      and split_part(substr(c.number, length(branch) + 1), '.', 1)::numeric >= position
  ));
  perform faultline.set_current_verb('');
end
$$;
