-- On which run of the server workers were last judged by their silence, and since when: see `server_run` and `dead_workers`.
alter table faultline.settings
  add column server_run text not null default '',
  add column server_run_noticed_at timestamptz not null default '-infinity';
