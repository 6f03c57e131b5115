/**
 * graphile-worker, with batching on.
 *
 * Settings:
 * - concurrentJobs 24, localQueue.size 500, completeJobBatchDelay 0, failJobBatchDelay 0 | worker.graphile.org/docs/performance
 * - 500 concurrent jobs for jobs that wait (localQueue.size 501, "a good starting point is concurrentJobs + 1") | worker.graphile.org/docs/performance
 * - 1 concurrent job and localQueue.size 25 for jobs that compute: one thread runs them all | worker.graphile.org/docs/performance
 * - many jobs are enqueued with one call of `add_jobs` | worker.graphile.org/docs/sql-add-job
 */
import { makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";
import { concurrency, main, tasks } from "./common.mjs";

const pool = new pg.Pool({ max: 10 });
const taskList = Object.fromEntries(Object.entries(tasks).map(([name, task]) => [name, (payload) => task(payload)]));

let utils;
const prepared = async () => (utils ??= await makeWorkerUtils({ pgPool: pool }));

await main({
  setup: () => runMigrations({ pgPool: pool }),
  bulk: async (kind, jobs) =>
    (await prepared()).addJobs(jobs.map((payload) => ({ identifier: kind, payload }))),
  single: async (kind, job) => (await prepared()).addJob(kind, job),
  left: async () => (await pool.query("select count(*) from graphile_worker._private_jobs")).rows[0].count,
  work: async () => {
    const concurrentJobs = concurrency({ drain: 24, io: 500, cpu: 1 });
    const localQueue = { size: concurrency({ drain: 500, io: 501, cpu: 25 }) };
    const batched = { localQueue, completeJobBatchDelay: 0, failJobBatchDelay: 0 };
    const runner = await run({ taskList, pgPool: pool, preset: { worker: { concurrentJobs, ...batched } } });
    await runner.promise;
  },
});
