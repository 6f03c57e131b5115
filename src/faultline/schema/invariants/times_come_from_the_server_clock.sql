-- The protocol reads the server's clock, which no session can change.
select p.oid::regprocedure::text as function, pg_get_function_sqlbody(p.oid) as body
from pg_proc p
where p.pronamespace = 'faultline'::regnamespace
  and p.proname in ('now', 'clock')
  and pg_get_function_sqlbody(p.oid) is distinct from
    case p.proname when 'now' then 'RETURN statement_timestamp()' else 'RETURN clock_timestamp()' end;
