// pg-boss: a poller for each queue, which fetches a batch and completes it by one statement each.
//
// Settings: batches of 500, no order by priority, the shortest polling interval that it allows (0.5 s), and, as its documentation
// describes for more work than one interval fetches, notifyWorker after a batch that was full. It has no notifications of new jobs.
"use strict";

const PgBoss = require("pg-boss");

const NAME = "noop";
const BATCH = 500;
const CONNECTIONS = 10;

class Queue {
  constructor(database) {
    this.database = database;
  }

  async open() {
    this.boss = new PgBoss({ ...this.database, max: CONNECTIONS });
    this.boss.on("error", (error) => console.error(error.message));
    await this.boss.start();
    if (!(await this.boss.getQueue(NAME))) await this.boss.createQueue(NAME);
  }

  async close() {
    await this.boss.stop({ wait: false, graceful: false });
  }

  async enqueue(number) {
    await this.boss.send(NAME, { number });
  }

  async enqueueSome(first, count) {
    await this.boss.insert(Array.from({ length: count }, (_, place) => ({ name: NAME, data: { number: first + place } })));
  }

  async work(handle) {
    const options = { batchSize: BATCH, pollingIntervalSeconds: 0.5, priority: false };
    const id = await this.boss.work(NAME, options, async (jobs) => {
      await Promise.all(jobs.map((job) => handle(job.data.number)));
      if (jobs.length === BATCH) this.boss.notifyWorker(id);
    });
    return { stop: () => this.boss.offWork({ id }) };
  }

  // Without a worker's pauses: fetch and complete, as its documentation does it for batches.
  async drain(handle) {
    const completing = new Set();
    for (;;) {
      const jobs = await this.boss.fetch(NAME, { batchSize: BATCH, priority: false });
      if (!jobs.length) break;
      await Promise.all(jobs.map((job) => handle(job.data.number)));
      const done = this.boss.complete(NAME, jobs.map((job) => job.id)).then(() => completing.delete(done));
      completing.add(done);
      if (completing.size > 1) await Promise.race(completing);
    }
    await Promise.all(completing);
  }
}

module.exports = { Queue };
