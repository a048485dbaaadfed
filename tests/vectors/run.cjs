// Runs any_language.json with the package pg: node run.cjs DATABASE-URL. Prints a line for each vector; ends with 1 if one fails.
"use strict";

const { readFileSync } = require("node:fs");
const { join } = require("node:path");
const { isDeepStrictEqual } = require("node:util");
const { setTimeout: sleep } = require("node:timers/promises");
const { Client } = require("pg");

const { types, vectors } = JSON.parse(readFileSync(join(__dirname, "any_language.json"), "utf8"));

const filled = (value, names) => {
  if (typeof value === "string" && value.startsWith("$")) {
    const [, name, rest] = /^\$(\w+)(.*)$/.exec(value);
    return rest ? names[name] + rest : names[name];
  }
  if (Array.isArray(value)) return value.map((each) => filled(each, names));
  if (value !== null && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([key, each]) => [key, filled(each, names)]));
  }
  return value;
};

async function called(client, step, names) {
  const args = Object.entries(filled(step.args, names));
  const places = args.map(([name], nr) => `${name} => $${nr + 1}::${types[step.call][name]}`);
  const values = args.map(([name, value]) => (types[step.call][name] === "jsonb" && value !== null ? JSON.stringify(value) : value));
  return (await client.query(`select * from forebay.${step.call}(${places.join(", ")})`, values)).rows;
}

// Integers of 64 bits are text in this package.
const plain = (found, wanted) => (typeof wanted === "number" && typeof found === "string" ? Number(found) : found);

function agree(rows, wanted) {
  if (wanted === undefined) return true;
  return rows.length === wanted.length && wanted.every((want, nr) =>
    Object.entries(want).every(([key, value]) => isDeepStrictEqual(plain(rows[nr][key], value), value)));
}

async function run(client, step, names) {
  if (step.statement) return client.query(step.statement);
  if (step.error) {
    const code = await called(client, step, names).then(() => "none", (error) => error.code);
    if (code !== step.error) throw new Error(`${JSON.stringify(step)}: SQLSTATE ${code}`);
    return undefined;
  }
  const until = Date.now() + 1000 * (step.repeat_seconds ?? 0);
  let rows = await called(client, step, names);
  while (!agree(rows, filled(step.rows, names))) {
    if (Date.now() >= until) throw new Error(`${JSON.stringify(step)}: found ${JSON.stringify(rows)}`);
    await sleep(200);
    rows = await called(client, step, names);
  }
  for (const [name, [row, column]] of Object.entries(step.save ?? {})) names[name] = rows[row][column];
  return undefined;
}

async function main() {
  const client = new Client({ connectionString: process.argv[2] });
  await client.connect();
  let failed = 0;
  for (const [nr, vector] of vectors.entries()) {
    try {
      const names = { queue: `node_${process.pid}_${nr}` };
      for (const step of vector.steps) await run(client, step, names);
      console.log(`ok ${vector.name}`);
    } catch (error) {
      failed += 1;
      console.log(`failed ${vector.name}: ${error.message}`);
      await client.query("rollback");
    }
  }
  await client.end();
  process.exitCode = failed > 0 ? 1 : 0;
}

main();
