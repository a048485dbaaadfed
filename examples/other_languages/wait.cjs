// Wait in Node.js, with the package pg, until a job of a queue with notices has ended.
//
//     npm install pg
//     DATABASE_URL=postgresql://... node wait.cjs reports 17
"use strict";

const { Client } = require("pg");

const [queue, job] = process.argv.slice(2);
const ENDED = ["done", "dead", "cancelled", "expired"];
const LOOK_MS = 5000;

async function main() {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  let look;
  client.on("notification", ({ payload }) => {
    const notice = JSON.parse(payload);
    // A notice without ids is about more jobs than it can name.
    if (notice.queue === queue && "job" in notice && (notice.jobs ?? [Number(job)]).includes(Number(job))) look?.();
  });
  await client.query("listen forebay_events");  // Before the first look: what ends after it is heard.
  for (;;) {
    const heard = new Promise((resolve) => { look = resolve; });
    const { rows } = await client.query("select group_name, state from forebay.job($1)", [job]);
    if (rows.length > 0 && rows.every(({ state }) => ENDED.includes(state))) {
      for (const { group_name: group, state } of rows) console.log(`${group}: ${state}`);
      break;
    }
    let timer;
    await Promise.race([heard, new Promise((resolve) => { timer = setTimeout(resolve, LOOK_MS); })]);
    clearTimeout(timer);
  }
  await client.end();
}

main().catch((error) => { console.error(error.message); process.exitCode = 1; });
