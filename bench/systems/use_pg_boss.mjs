/**
 * pg-boss.
 *
 * Settings:
 * - batchSize 500 (as many as run at once), 25 for jobs that compute; burstWhenBatchFull: fetch on while batches are full | pgboss.io, api/workers, polling options
 * - LISTEN/NOTIFY on (`useListenNotify`, queue `notify`), pollingIntervalSeconds at its minimum 0.5 | pgboss.io, api/workers and api/queues
 * - perJobResults off: a batch is completed in one statement | pgboss.io, api/workers
 * - many jobs are enqueued with `insert` | pgboss.io, api/jobs
 */
import { PgBoss } from "pg-boss";
import pg from "pg";
import { concurrency, DSN, main, tasks } from "./common.mjs";

const pool = new pg.Pool({ max: 2 });
let starting;
const boss = () => (starting ??= start());
async function start() {
  const one = new PgBoss({ connectionString: DSN, useListenNotify: true });
  one.on("error", console.error);
  await one.start();
  return one;
}

await main({
  setup: async () => {
    for (const kind of Object.keys(tasks)) await (await boss()).createQueue(kind, { notify: true });
    await (await boss()).stop({ graceful: false });
  },
  bulk: async (kind, jobs) => (await boss()).insert(kind, jobs.map((data) => ({ data }))),
  single: async (kind, job) => (await boss()).send(kind, job),
  left: async () => (await pool.query("select count(*) from pgboss.job where state < 'completed'")).rows[0].count,
  work: async () => {
    const options = {
      batchSize: concurrency({ drain: 500, io: 500 }),
      burstWhenBatchFull: true,
      pollingIntervalSeconds: 0.5,
    };
    for (const [kind, task] of Object.entries(tasks)) {
      await (await boss()).work(kind, options, (jobs) => Promise.all(jobs.map((job) => task(job.data))));
    }
  },
});
