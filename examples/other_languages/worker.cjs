// A worker in Node.js with the package pg: four jobs at a time of one queue, until SIGTERM.
//
//     npm install pg
//     DATABASE_URL=postgresql://... node worker.cjs emails
"use strict";

const { hostname } = require("node:os");
const { setTimeout: sleep } = require("node:timers/promises");
const { Pool } = require("pg");

const QUEUE = process.argv[2] ?? "emails";
const LEASE_SECONDS = Number(process.env.LEASE_SECONDS ?? 30);
const SLOTS = 4;
const pool = new Pool({ connectionString: process.env.DATABASE_URL, max: SLOTS + 2 });

const handlers = {
  // A handler gets the arguments and the job; what it returns is kept for a day.
  async send_welcome({ user_id }) {
    console.log(`welcome, user ${user_id}`);
  },
  // With its own write in the same statement, or transaction, effect and end are one commit.
  async count_login({ user_id }, job) {
    await pool.query(
      "insert into login (user_id, job_id) select $1, $2 from forebay.done($3) where status = 'settled'",
      [user_id, job.id, [job.token]]);
  },
};

async function run(job) {
  let call;
  try {
    const handler = handlers[job.kind];
    if (handler === undefined) throw new Error(`no handler for ${job.kind}`);
    const result = (await handler(job.args, job)) ?? null;
    call = ["select status from forebay.done($1, results => $2)", [[job.token], JSON.stringify([result])]];
  } catch (error) {
    call = ["select status from forebay.failed($1, $2, $3, $4)", [[job.token], error.message, error.name, error.stack ?? null]];
  }
  for (let tries = 1; ; tries += 1) {  // A settlement whose answer was lost is repeated without harm: "already".
    try {
      const { rows: [{ status }] } = await pool.query(...call);
      if (status === "lost") console.error(`job ${job.id} went to another worker`);
      return;
    } catch (error) {
      if (tries === LEASE_SECONDS) throw error;
      await sleep(1000);
    }
  }
}

async function main() {
  let stopping = false;
  for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => { stopping = true; });
  const enter = () => pool.query("select forebay.enter($1, $2, make_interval(secs => $3), host => $4, pid => $5, app => 'worker.cjs (node)') as token",
    [`node-${hostname()}-${process.pid}`, [QUEUE], LEASE_SECONDS, hostname(), process.pid]).then(({ rows }) => rows[0].token);
  let worker = await enter();
  const beat = setInterval(() => pool.query("select forebay.extend($1)", [worker]).catch(() => {}), (LEASE_SECONDS * 1000) / 4);
  const running = new Set();
  while (!stopping) {
    try {
      const { rows } = await pool.query("select * from forebay.take($1, $2, $3)", [QUEUE, worker, SLOTS - running.size]);
      for (const job of rows) {
        const call = run(job).catch((error) => console.error(`job ${job.id} was not settled: ${error.message}`)).finally(() => running.delete(call));
        running.add(call);
      }
      if (running.size === SLOTS) await Promise.race(running);
      else if (rows.length === 0) await sleep(200);
    } catch (error) {
      console.error(error.message);
      await sleep(1000);
      if (error.code === "JQ010") worker = await enter();  // The lease has ended; its jobs went to others.
    }
  }
  await Promise.all(running);
  clearInterval(beat);
  await pool.query("select forebay.leave($1)", [worker]);
  await pool.end();
}

main();
