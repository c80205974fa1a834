// The tools of the recorded agents in JavaScript, which note what was really called.
import { readFileSync, writeFileSync } from 'node:fs';

import { z } from 'zod';

// How the scripted model asks for each call: call id, step, and the group of a parallel reply.
const PLAN = {
  'authenticate ann': ['call_r0i0', 1, null],
  'get_balance A-1': ['call_r1i0', 2, 1],
  'get_limits A-1': ['call_r1i1', 2, 1],
  'transfer 1500': ['call_r3i0', 3, null],
  'transfer 900': ['call_r4i0', 4, null],
};
export const QUESTION = process.env.QUESTIONS.split('\n').at(-1);
// What is true of all calls, and of the run.
export const TRUTH = { agent: 'bank_agent', session_id: null, call_ids: true, steps: true };
const calls = [];

function noted(name, args, result, error) {
  const [call_id, step, parallel_group] = PLAN[`${name} ${Object.values(args)[0]}`];
  calls.push({ name, args, result, error, call_id, step, parallel_group, turn: 1 });
  if (error) throw new Error('limit exceeded');
  return result;
}

const tool = (name, description, schema, run) => ({
  name,
  description,
  schema: z.object(schema),
  run: (args) => run(args, (result, error = false) => noted(name, args, result, error)),
});

export const TOOLS = [
  tool('authenticate', 'Authenticates a user.', { user: z.string() }, (_, note) =>
    note({ ok: true })),
  tool('get_balance', 'Reads the balance of an account.', { account: z.string() }, (_, note) =>
    note({ balance: 5000 })),
  tool('get_limits', 'Reads the limit of an account.', { account: z.string() }, (_, note) =>
    note({ limit: 1000 })),
  tool(
    'transfer',
    'Sends an amount to an account.',
    { amount: z.number().int(), to: z.string() },
    ({ amount }, note) => (amount > 1000 ? note(null, true) : note({ sent: amount })),
  ),
];

const version = (name) =>
  JSON.parse(readFileSync(`node_modules/${name}/package.json`, 'utf8')).version;

// Writes what was really done.
process.on('exit', () => {
  const names = process.env.PACKAGES.split(' ');
  const packages = Object.fromEntries(names.map((name) => [name, version(name)]));
  calls.sort((one, other) => (one.call_id < other.call_id ? -1 : 1));
  const expected = {
    framework: names[0],
    version: `${names[0]} ${packages[names[0]]}`,
    instrumentation: process.env.INSTRUMENTATION,
    scenario: process.env.SCENARIO,
    packages,
    language: 'javascript',
    session_id: TRUTH.session_id,
    conversation_turns: 1,
    tool_calls: calls.map((call) => ({
      ...call,
      agent: TRUTH.agent,
      call_id: TRUTH.call_ids ? call.call_id : null,
      step: TRUTH.steps ? call.step : null,
    })),
  };
  writeFileSync('expected.json', JSON.stringify(expected, null, 1));
});
