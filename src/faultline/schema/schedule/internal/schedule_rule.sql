-- The rule of a schedule alone: when it ticks. A schedule whose rule stays keeps its position.
create or replace function faultline.schedule_rule(spec json) returns jsonb
language sql immutable
as $$
  select jsonb_strip_nulls(jsonb_build_object(
    'cron', spec ->> 'cron', 'tz', spec ->> 'tz', 'every', (spec ->> 'every')::numeric, 'at', (spec ->> 'at')
  ));
$$;
