/**
 * BullMQ on Redis, with a global concurrency of the queue.
 *
 * Settings:
 * - setGlobalConcurrency 10, each worker with a concurrency of 10 | docs.bullmq.io/guide/queues/global-concurrency
 * - removeOnComplete: true, so that finished jobs do not pile up | docs.bullmq.io/guide/queues/auto-removal-of-jobs
 * - many jobs are enqueued with `addBulk` | docs.bullmq.io/guide/queues/adding-bulks
 */
import { Queue, Worker } from "bullmq";
import IORedis from "ioredis";
import { held, LIMIT, main, REDIS } from "./common.mjs";

const connection = new IORedis(REDIS, { maxRetriesPerRequest: null });
const opts = { removeOnComplete: true };
let made;
const queue = async () => {
  if (made === undefined) {
    made = new Queue("bench", { connection });
    await made.setGlobalConcurrency(LIMIT);
  }
  return made;
};

await main({
  setup: async () => {},
  bulk: async (kind, jobs) => (await queue()).addBulk(jobs.map((data) => ({ name: kind, data, opts }))),
  single: async (kind, job) => (await queue()).add(kind, job, opts),
  left: async () => {
    const counts = await (await queue()).getJobCounts("waiting", "active", "delayed", "prioritized");
    return Object.values(counts).reduce((sum, count) => sum + count, 0);
  },
  work: async () => {
    new Worker("bench", (job) => held(job.data), { connection, concurrency: LIMIT });
  },
});
