// A worker of BullMQ: it adds what it got to a list in Redis, as recorded.py does.
"use strict";

const { Worker } = require("bullmq");
const { Redis } = require("ioredis");

const records = new Redis(process.env.FAR_REDIS);
const worker = new Worker(
  process.env.FAR_QUEUE,
  async (job) => {
    const record = { id: job.id, kwargs: job.data, headers: job.opts.forebay, name: job.name };
    await records.rpush(process.env.FAR_LIST, JSON.stringify(record));
  },
  {
    connection: new Redis(process.env.FAR_BROKER, { maxRetriesPerRequest: null }),
    prefix: process.env.FAR_PREFIX,
  },
);
worker.on("error", (error) => console.error(error));
process.on("SIGTERM", async () => {
  await worker.close();
  process.exit(0);
});
