// A queue of Node.js in a process of the benchmark: the same commands as _engine.py, lines of JSON on both ends.
//
// Arguments: the module of the queue, and the database as options of the package pg. A module exports a class Queue:
//   open(), close(), enqueue(number), enqueueSome(first, count), spread(queues),
//   work(handle): starts a worker that calls handle(number) for each job; returns { stop() },
//   drain(handle): works until the queue is empty.
"use strict";

const fs = require("node:fs");
const path = require("node:path");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const { Pool } = require("pg");

const FULL_PAUSE_MS = 1;
const STOP_PAUSE_MS = 20;
const CHUNK = 5000;

// Handlers with an effect update one row each, 20 at a time, on connections of the application's own pool.
const EFFECT_CONNECTIONS = 20;
const EFFECT_ROWS = 10000;
const UPDATE = { name: "update_effect", text: "update effect set n = n + 1 where id = $1" };

const seconds = () => Number(process.hrtime.bigint()) / 1e9;

// See _counters.py: 64-bit numbers in a file that is mapped into the memory of the other processes.
class Counters {
  constructor(name) {
    this.file = fs.openSync(name, "r+");
    this.number = Buffer.alloc(8);
  }

  read(place) {
    fs.readSync(this.file, this.number, 0, 8, place * 8);
    return Number(this.number.readBigInt64LE());
  }

  write(place, value) {
    this.number.writeBigInt64LE(BigInt(value));
    fs.writeSync(this.file, this.number, 0, 8, place * 8);
  }

  get enqueued() { return this.read(0); }
  set enqueued(value) { this.write(0, value); }
  get handled() { return this.read(1); }
  set handled(value) { this.write(1, value); }
  get stop() { return this.read(2) !== 0; }

  close() { fs.closeSync(this.file); }
}

// See _journal.py: a record of 16 bytes for each job, with the monotonic clock of the machine.
class Journal {
  constructor(name) {
    this.file = fs.openSync(name, "a");
    this.record = Buffer.alloc(16);
  }

  note(number) {
    this.record.writeBigInt64LE(BigInt(number), 0);
    this.record.writeDoubleLE(seconds(), 8);
    fs.writeSync(this.file, this.record);
  }
}

class Engine {
  constructor(queue, database) {
    this.queue = queue;
    this.database = database;
    this.effects = new Pool({ ...database, max: EFFECT_CONNECTIONS });
    this.idleWorkers = [];
  }

  async enqueue({ seconds: duration }) {
    await this.queue.enqueue(0);
    const began = seconds();
    let count = 0;
    while (seconds() < began + duration) {
      await this.queue.enqueue(count);
      count += 1;
    }
    return count / (seconds() - began);
  }

  async fill({ count }) {
    const began = seconds();
    for (let first = 0; first < count; first += CHUNK) {
      await this.queue.enqueueSome(first, Math.min(CHUNK, count - first));
    }
    return seconds() - began;
  }

  async drain({ handler }) {
    const began = seconds();
    const cpu = process.cpuUsage();
    let ended = 0;
    const handle = handler === "update"
      ? async (number) => {
        await this.effects.query({ ...UPDATE, values: [number % EFFECT_ROWS] });
        ended += 1;
      }
      : () => { ended += 1; };
    await this.queue.drain(handle, () => ended);
    const used = process.cpuUsage(cpu);
    return { seconds: seconds() - began, cpu_seconds: (used.user + used.system) / 1e6, ended };
  }

  async spread({ queues }) {
    await this.queue.spread(queues);
    return true;
  }

  async produce({ path: name, seconds: duration, batch, backlog, per_second: perSecond }) {
    const counters = new Counters(name);
    const began = seconds();
    for (let now; (now = seconds()) < began + duration;) {
      const isEarly = perSecond !== null && counters.enqueued >= (now - began) * perSecond;
      if (isEarly || counters.enqueued - counters.handled >= backlog) {
        await sleep(FULL_PAUSE_MS);
        continue;
      }
      const first = counters.enqueued;
      await this.queue.enqueueSome(first, batch);
      counters.enqueued = first + batch;
    }
    const enqueued = counters.enqueued;
    counters.close();
    return enqueued;
  }

  async trickle({ first, moments }) {
    const began = seconds();
    const committed = [];
    for (let place = 0; place < moments.length; place += 1) {
      const wait = began + moments[place] - seconds();
      if (wait > 0) await sleep(wait * 1000);
      await this.queue.enqueue(first + place);
      committed.push(seconds());
    }
    return committed;
  }

  async serve({ path: name, journal }) {
    const counters = new Counters(name);
    const notes = journal ? new Journal(journal) : null;
    let handled = 0;
    const worker = await this.queue.work((number) => {
      if (notes) notes.note(number);
      handled += 1;
      counters.handled = handled;
    });
    while (!counters.stop) await sleep(STOP_PAUSE_MS);
    await worker.stop();
    counters.close();
    return null;
  }

  // They end with the process.
  async idle({ count }) {
    for (let number = 0; number < count; number += 1) {
      const Queue = this.queue.constructor;
      const queue = new Queue(this.database);
      await queue.open();
      this.idleWorkers.push(await queue.work(() => {}));
    }
    return true;
  }
}

async function main() {
  const [module, database] = process.argv.slice(2);
  const answer = (value) => process.stdout.write(`${JSON.stringify(value)}\n`);
  const { Queue } = require(path.join(__dirname, `${module}.cjs`));
  const queue = new Queue(JSON.parse(database));
  await queue.open();
  const engine = new Engine(queue, JSON.parse(database));
  answer("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const { do: what, ...values } = JSON.parse(line);
    answer(await engine[what](values));
  }
}

main().then(() => process.exit(0), (error) => {
  console.error(error);
  process.exit(1);
});
