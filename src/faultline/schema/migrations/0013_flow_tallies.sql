-- What workers count of flows: see core/measures.py.
alter table faultline.tallies
  add column suspended bigint not null default 0,
  add column programs_changed bigint not null default 0;
