// graphile-worker: jobs fetched in batches by the pool, completed in batches; LISTEN announces new ones.
//
// Settings of its page about performance: 24 jobs at a time on 25 connections, a local queue of 500 jobs, completions in batches.
"use strict";

const { Logger, makeWorkerUtils, run, runOnce } = require("graphile-worker");
const { Pool } = require("pg");

const TASK = "noop";
const PRESET = {
  worker: {
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
  },
};

class Queue {
  constructor(database) {
    this.database = database;
    this.queues = 0;
  }

  async open() {
    this.pool = new Pool({ ...this.database, max: PRESET.worker.maxPoolSize });
    this.pool.on("error", () => {});
    this.logger = new Logger(() => () => {});
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger: this.logger });
    await this.utils.migrate();
  }

  async close() {
    await this.utils.release();
    await this.pool.end();
  }

  async enqueue(number) {
    const spec = this.queues ? { queueName: `queue ${number % this.queues}` } : {};
    await this.utils.addJob(TASK, { number }, spec);
  }

  async enqueueSome(first, count) {
    await this.utils.addJobs(Array.from({ length: count }, (_, place) => {
      const number = first + place;
      const job = { identifier: TASK, payload: { number } };
      return this.queues ? { ...job, queueName: `queue ${number % this.queues}` } : job;
    }));
  }

  spread(queues) {
    this.queues = queues;
  }

  options(handle) {
    return {
      pgPool: this.pool,
      preset: PRESET,
      logger: this.logger,
      noHandleSignals: true,
      taskList: { [TASK]: ({ number }) => handle(number) },
      parsedCronItems: [],
    };
  }

  async work(handle) {
    const runner = await run(this.options(handle));
    return { stop: () => runner.stop() };
  }

  // Again while there was something: a run ends when it finds no job, and jobs of a queue that runs one are not found.
  async drain(handle, ended) {
    for (let before = -1; ended() > before;) {
      before = ended();
      await runOnce(this.options(handle));
    }
  }
}

module.exports = { Queue };
