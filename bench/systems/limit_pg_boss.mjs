/**
 * pg-boss, all jobs in one group, whose limit holds over all processes.
 *
 * Settings:
 * - groupConcurrency 10, jobs with `group: { id }` | pgboss.io, api/workers, group concurrency
 * - batchSize 10: a worker asks for no more than the limit allows; burstWhenBatchFull | pgboss.io, api/workers, polling options
 * - LISTEN/NOTIFY on (`useListenNotify`, queue `notify`), pollingIntervalSeconds at its minimum 0.5 | pgboss.io, api/workers and api/queues
 * - many jobs are enqueued with `insert` | pgboss.io, api/jobs
 */
import { PgBoss } from "pg-boss";
import pg from "pg";
import { DSN, held, LIMIT, main } from "./common.mjs";

const pool = new pg.Pool({ max: 2 });
let starting;
const boss = () => (starting ??= start());
async function start() {
  const one = new PgBoss({ connectionString: DSN, useListenNotify: true });
  one.on("error", console.error);
  await one.start();
  return one;
}
const group = { id: "all" };

await main({
  setup: async () => {
    await (await boss()).createQueue("held", { notify: true });
    await (await boss()).stop({ graceful: false });
  },
  bulk: async (kind, jobs) => (await boss()).insert(kind, jobs.map((data) => ({ data, group }))),
  single: async (kind, job) => (await boss()).send(kind, job, { group }),
  left: async () => (await pool.query("select count(*) from pgboss.job where state < 'completed'")).rows[0].count,
  work: async () => {
    const options = { batchSize: LIMIT, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5, groupConcurrency: LIMIT };
    await (await boss()).work("held", options, (jobs) => Promise.all(jobs.map((job) => held(job.data))));
  },
});
