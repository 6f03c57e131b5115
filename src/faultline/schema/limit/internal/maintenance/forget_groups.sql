-- Forget groups that have nothing left, up to `most`. Not too early: a group would have its tokens again. Returns how many.
create or replace function faultline.forget_groups(queue text, due timestamptz, most integer) returns integer
language plpgsql volatile
as $$
#variable_conflict use_column
declare
  each_group constant jsonb := faultline.group_limit(forget_groups.queue, '*');
  have_own constant boolean := exists (
    select from faultline.limits l where l.queue = forget_groups.queue and l.group_key not in ('', '*')
  );
  -- What holds for each is read once: many may rest.
  rested constant double precision := extract(epoch from due) - 10
    - coalesce((each_group ->> 'burst')::double precision / faultline.rate_of(each_group), 0);
  forgotten integer;
begin
  delete from faultline.groups g
  where g.ctid = any (array(
    select i.ctid
    from faultline.groups i
    where i.queue = forget_groups.queue and not i.has_waiting and i.holding = 0
      and i.changed_second < rested
      and (not have_own or i.changed_second < coalesce((
        select extract(epoch from due) - 10 - (o.fields ->> 'burst')::double precision / faultline.rate_of(o.fields)
        from (
          select each_group || l.effective as fields
          from faultline.limits l
          where l.queue = i.queue and l.group_key = i.group_key
        ) o
        where faultline.rate_of(o.fields) is not null
      ), rested))
    order by i.changed_second
    limit forget_groups.most
  ));
  get diagnostics forgotten = row_count;
  return forgotten;
end
$$;
