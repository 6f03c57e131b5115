-- Return why a verb wrote nothing for some leases, and record it in the journal.
-- Before: the verb has written for the leases at the positions `done`. The others are lost, or another session locks
-- their rows.
-- After: one row for each of the others. All are in the journal but `busy`, which is not a refusal.
-- A lease that is completed in the ledger is not refused to `complete` (it is sent again after its answer was lost), nor to
-- `renew` (the task goes on after it has completed the job in its own transaction, or the worker has not noticed yet).
create or replace function faultline.refuse(
  verb text,
  job_ids uuid[],
  tokens bigint[],
  owners text[],
  done bigint[]
) returns setof faultline.refusal
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  perform faultline.require_synchronous_commit();
  return query
    with leases as (
      select * from unnest(refuse.job_ids, refuse.tokens, refuse.owners) with ordinality as l (job_id, token, owner, position)
    ),
    judged as materialized (
      select
        l.job_id, l.token, l.owner, v.current_token,
        case v.reason when 'held' then 'busy' else v.reason end as reason
      from (
        select l.job_id, l.token, l.owner from leases l
        -- By the whole lease: a batch may contain a stale and a held lease of one job, or one lease twice.
        except
        select l.job_id, l.token, l.owner from leases l where l.position = any (refuse.done)
      ) l
      cross join lateral faultline.lease_status(l.job_id, l.token, l.owner) v
      where not (
        refuse.verb in ('complete', 'renew')
        and exists (
          select from faultline.ledger f
          -- Looked up one by one, as in `complete`: a plan made while the ledger was empty would scan all of it.
          where f.job_id = any (array[l.job_id]) and f.fencing_token = l.token and f.owner = l.owner
        )
      )
    ),
    recorded as (
      insert into faultline.journal (at, job_id, event, fencing_token, owner, detail)
      select
        faultline.clock(), g.job_id, 'stale_write_blocked', g.token, g.owner,
        jsonb_build_object(
          'verb', refuse.verb, 'reason', g.reason, 'stale_token', g.token, 'current_token', g.current_token
        )
      from judged g
      where g.reason <> 'busy'
      order by g.job_id
    )
    select g.job_id, g.token, g.owner, g.reason, g.current_token from judged g;
end
$$;
