-- Raise FL005 in a transaction of another isolation level than READ COMMITTED. There, a look after the lock would see
-- what was there when the transaction began, and a wake-up could be lost.
create or replace function faultline.read_committed(verb text) returns void
language plpgsql stable
as $$
begin
  if current_setting('transaction_isolation') <> 'read committed' then
    raise exception '% is possible in READ COMMITTED transactions only', read_committed.verb
      using errcode = 'FL005', hint = 'begin the transaction with: isolation level read committed';
  end if;
end
$$;
