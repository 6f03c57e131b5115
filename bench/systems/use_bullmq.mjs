/**
 * BullMQ on Redis.
 *
 * Settings:
 * - concurrency 100, 500 for jobs that wait, 25 for jobs that compute | docs.bullmq.io/guide/workers/concurrency
 * - removeOnComplete: true, so that finished jobs do not pile up | docs.bullmq.io/guide/queues/auto-removal-of-jobs
 * - many jobs are enqueued with `addBulk` | docs.bullmq.io/guide/queues/adding-bulks
 */
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import { concurrency, main, REDIS, tasks } from "./common.mjs";

const connection = new IORedis(REDIS, { maxRetriesPerRequest: null });
const opts = { removeOnComplete: true };
let made;
const queue = () => (made ??= new Queue("bench", { connection }));

await main({
  setup: async () => {},
  bulk: (kind, jobs) => queue().addBulk(jobs.map((data) => ({ name: kind, data, opts }))),
  single: (kind, job) => queue().add(kind, job, opts),
  left: async () => {
    const counts = await queue().getJobCounts("waiting", "active", "delayed", "prioritized");
    return Object.values(counts).reduce((sum, count) => sum + count, 0);
  },
  work: async () => {
    new Worker("bench", (job) => tasks[job.name](job.data), { connection, concurrency: concurrency({ drain: 100, io: 500 }) });
  },
});
