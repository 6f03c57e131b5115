-- Write what a claim has taken from groups. Before: the caller holds the queue's lock.
-- A group moves on by one for each job, divided by its weight. It is ready again at once where it may have more jobs now;
-- otherwise an event makes it so, or it is looked at when it has a token.
create or replace function faultline.save_served_groups(served faultline.served_group[], due timestamptz) returns void
language plpgsql volatile
as $$
#variable_conflict use_column
begin
  update faultline.groups g
  set changed_second = greatest(g.changed_second, extract(epoch from due)::bigint),
      holding = s.holding,
      holding_per_weight = s.holding / s.weight,
      virtual_time = s.virtual_time + s.jobs / s.weight,
      tokens = s.tokens,
      refilled_at = case when s.rate is not null then faultline.refill_moment(s.refilled_at, due) end,
      has_waiting = s.has_more,
      ready = s.has_more and s.holding < s.cap and s.are_first and (s.tokens < 1) is not true,
      not_before = case
        when not s.has_more then null
        when s.tokens < 1 then due + make_interval(secs => (1 - s.tokens) / s.rate)
        -- What is there is locked: look again a little later.
        when not s.are_first then due + interval '100 milliseconds'
      end,
      head_priority = case when s.are_first then coalesce(s.last_priority, g.head_priority) else g.head_priority end,
      head_at = case when s.are_first then coalesce(s.last_at, g.head_at) else g.head_at end,
      head_id = case when s.are_first then coalesce(s.last_id, g.head_id) else g.head_id end
  from unnest(served) s
  where g.ctid = s.row_id;
end
$$;
