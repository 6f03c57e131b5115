// What all adapters in JavaScript share. The twin of common.py, which explains it.
import { createHash, randomBytes } from "node:crypto";
import { openSync, writeSync } from "node:fs";
import { createInterface } from "node:readline";

export const DSN = process.env.BENCH_DSN ?? "";
export const REDIS = process.env.BENCH_REDIS ?? "";
const WORKLOAD = process.env.BENCH_WORKLOAD ?? "drain";
const BULK_JOBS = 5000, BULK_BYTES = 8_000_000;
export const LIMIT = Number(process.env.BENCH_LIMIT ?? "10");
const HASHES = Number(process.env.BENCH_HASHES ?? "6000");

const file = openSync(process.env.BENCH_STAMPS ?? "/dev/null", "a", 0o600);
const record = Buffer.alloc(24);
record.writeBigInt64LE(BigInt(process.pid), 16);

// Date.now() has whole milliseconds only; the same clock with more digits.
const clockStart = performance.timeOrigin / 1000;
const now = () => clockStart + performance.now() / 1000;
const sleep = (seconds) => new Promise((done) => setTimeout(done, seconds * 1000));

export function stamp(sent) {
  record.writeDoubleLE(sent, 0);
  record.writeDoubleLE(now(), 8);
  writeSync(file, record);
}

function burn() {
  let digest = Buffer.alloc(0);
  for (let i = 0; i < HASHES; i++) digest = createHash("sha256").update(digest).digest();
}

export const tasks = {
  nothing: async ({ sent }) => { stamp(sent); },
  wait: async ({ sent }) => { stamp(sent); await sleep(0.01); },
  block: async ({ sent }) => { stamp(sent); burn(); },
};

// For adapters of limits: how many ran at once.
export const held = async () => { stamp(1); await sleep(0.01); stamp(-1); };

export const concurrency = ({ drain, io, cpu = 25 }) => ({ io, cpu })[WORKLOAD] ?? drain;

export async function main({ setup, bulk, single, left, work }) {
  const action = process.argv[2];
  if (action === "work") return work();
  if (action === "setup") { await setup(); process.exit(0); }
  if (action === "burn") {
    for (let i = 0; i < Number(process.argv[3]); i++) { stamp(now()); burn(); }
    process.exit(0); // an open connection would keep it
  }
  console.log(JSON.stringify({ ready: true }));
  for await (const line of createInterface({ input: process.stdin })) {
    let answer;
    try {
      answer = await obey(JSON.parse(line), bulk, single, left);
    } catch (error) {
      answer = { error: String(error).slice(0, 500) };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}

async function obey(order, bulk, single, left) {
  if (order.do === "left") return { left: Number(await left()) };
  const extra = order.size ? { pad: randomBytes(Math.floor(order.size * 3 / 4)).toString("base64") } : {};
  const begun = performance.now();
  const took = (jobs) => ({ jobs, seconds: (performance.now() - begun) / 1000 });
  if (order.do === "bulk") {
    const most = Math.max(1, Math.min(BULK_JOBS, Math.floor(BULK_BYTES / Math.max(1, order.size ?? 0))));
    for (let first = 0; first < order.jobs; first += most) {
      const sent = now();
      await bulk(order.kind, Array.from({ length: Math.min(most, order.jobs - first) }, () => ({ sent, ...extra })));
    }
    return took(order.jobs);
  }
  if (order.do === "single") {
    let jobs = 0;
    for (; performance.now() - begun < order.seconds * 1000; jobs++) await single(order.kind, { sent: now(), ...extra });
    return took(jobs);
  }
  return took(await paced(order, single, extra));
}

// At a steady rate, whether or not the one before has been answered; up to 8 on their way at a time.
async function paced(order, single, extra) {
  const total = Math.floor(order.rate * order.seconds), running = [], waiting = [], begun = performance.now();
  let places = 8;
  const send = async () => {
    if (places > 0) places -= 1;
    else await new Promise((turn) => waiting.push(turn));
    await single(order.kind, { sent: now(), ...extra });
    if (waiting.length > 0) waiting.shift()();
    else places += 1;
  };
  for (let number = 0; number < total; number++) {
    const early = begun + (number * 1000) / order.rate - performance.now();
    if (early > 0.5) await sleep(early / 1000);
    running.push(send());
  }
  await Promise.all(running);
  return total;
}
