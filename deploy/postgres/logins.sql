-- The logins of compose.yaml, each with no more than it needs. Run once, by a superuser, before the first `faultline migrate`.
-- The schema belongs to a login that only migrates with: neither workers nor the API can change a table or drop a guard.
create role faultline_producer nologin;
create role faultline_worker nologin;
create role faultline_viewer nologin;
create role faultline_operator nologin;

create role faultline_owner login;
alter database faultline owner to faultline_owner;

create role shop_worker login in role faultline_worker;
create role shop_api login in role faultline_viewer, faultline_producer, faultline_operator;
-- To see what other logins hold open, which `faultline doctor` and the metrics tell of.
grant pg_monitor to shop_api;
