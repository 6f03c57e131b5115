-- The key of the advisory lock by which large claims of one queue take turns.
create or replace function faultline.claim_lock(queue text) returns bigint
language sql immutable parallel safe
return hashtextextended('faultline claim ' || queue, 0);
