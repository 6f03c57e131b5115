-- Which of a sample's counts (`due`, `delayed`, `running`, `failed`) are estimates: there was too much to count.
alter table faultline.samples add column estimated text[] not null default '{}';
