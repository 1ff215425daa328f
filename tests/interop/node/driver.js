// Drives the stock Node client through what it can do, each scenario checking what came of it.
//
//   driver.js NAMESRV NAME [SCENARIO...]     topics "Round-NAME", "Tags-NAME", ... exist already
//
// With ACCESS_KEY and SECRET_KEY in the environment all requests are signed.
// A line "RESULT scenario ok" or "RESULT scenario failed: reason" for each; the last line is PASS or FAIL.
'use strict';

const assert = require('assert');
const { Consumer, Message, Producer } = require('ali-ons');

const WAIT_MS = 50000;
const COUNT = 20;
const LATE_MS = 30000;
const [ nameSrv, name, ...wanted ] = process.argv.slice(2);
const quiet = { debug() {}, info() {}, warn() {}, error() {}, log() {} };
const errors = [];
let instances = 0;

function options(group) {
  instances += 1;
  return {
    nameSrv,
    producerGroup: group,
    consumerGroup: group,
    httpclient: {},
    logger: quiet,
    instanceName: `node-${process.pid}-${instances}`,
    rebalanceInterval: 500,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
    accessKey: process.env.ACCESS_KEY,
    secretKey: process.env.SECRET_KEY,
  };
}

// A new group has no offsets and no retry topic for a moment: no mistake, yet told as one.
function keep(error) {
  if (!/readOffset failed|%RETRY%/.test(error.message)) errors.push(error.message);
}

async function producer() {
  const made = new Producer(options(`GID-${name}`));
  made.on('error', keep);
  await made.ready();
  return made;
}

async function consumer(group, topic, expression, handler, more) {
  const made = new Consumer(Object.assign(options(group), more));
  made.on('error', keep);
  made.subscribe(topic, expression, handler);
  await made.ready();
  return made;
}

async function until(what, condition) {
  const deadline = Date.now() + WAIT_MS;
  while (!condition()) {
    assert(Date.now() < deadline, `waited in vain for ${what()}`);
    await new Promise(resolve => setTimeout(resolve, 20));
  }
}

function message(topic, tag, body) {
  const made = new Message(topic, tag, body);
  made.keys = [ `key-${body.slice(0, 20)}` ];
  return made;
}

async function send(from, topic, prefix, change = () => {}) {
  const sent = new Map();
  for (let i = 0; i < COUNT; i++) {
    const made = message(topic, `Tag${i % 3}`, `${prefix}${i}`);
    change(made, i);
    const result = await from.send(made);
    assert.strictEqual(result.sendStatus, 'SEND_OK');
    sent.set(`${prefix}${i}`, result);
  }
  return sent;
}

class Received extends Array {
  static get [Symbol.species]() {
    return Array;
  }

  get bodies() {
    return Array.from(this, each => each.body.toString());
  }

  async exactly(expected) {
    await until(() => `${expected.length} messages, have ${this.length}`, () => this.length >= expected.length);
    assert.deepStrictEqual(this.bodies.sort(), [ ...expected ].sort());
  }
}

const scenarios = {
  async round_trip() {
    const topic = `Round-${name}`;
    const received = new Received();
    await consumer(`GID-Round-${name}`, topic, '*', async each => { received.push(each); });
    const sent = await send(await producer(), topic, 'round ü 消息 ', (made, i) => {
      made.properties.number = `value ${i}`;
    });
    await received.exactly([ ...sent.keys() ]);
    const queues = new Set();
    for (const each of received) {
      const body = each.body.toString();
      const result = sent.get(body);
      const number = Number(body.split(' ').pop());
      assert.strictEqual(each.topic, topic);
      assert.strictEqual(each.tags, `Tag${number % 3}`);
      assert.strictEqual(each.keys, `key-${body.slice(0, 20)}`);
      assert.strictEqual(each.properties.number, `value ${number}`);
      assert.strictEqual(each.queueId, Number(result.messageQueue.queueId));
      assert.strictEqual(each.queueOffset, Number(result.queueOffset));
      assert.strictEqual(each.reconsumeTimes, 0);
      queues.add(each.queueId);
    }
    assert.strictEqual(queues.size, 4);
  },

  async tag_filter() {
    const topic = `Tags-${name}`;
    const received = new Received();
    await consumer(`GID-Tags-${name}`, topic, 'Tag0 || Tag2', async each => { received.push(each); });
    const sent = await send(await producer(), topic, 'tag-');
    await received.exactly([ ...sent.keys() ].filter(body => body.slice(4) % 3 !== 1));
  },

  async retry() {
    const topic = `Retry-${name}`;
    const times = new Map();
    await consumer(`GID-Retry-${name}`, topic, '*', async each => {
      const body = each.body.toString();
      times.set(body, [ ...times.get(body) || [], each.reconsumeTimes ]);
      assert.strictEqual(each.topic, topic);
      return body === 'again' && each.reconsumeTimes < 1 ? Consumer.ACTION_RETRY : undefined;
    });
    const from = await producer();
    await from.send(message(topic, 'A', 'again'));
    await from.send(message(topic, 'A', 'once'));
    await until(() => `the retry, have ${JSON.stringify([ ...times ])}`, () => (times.get('again') || []).length >= 2);
    assert.deepStrictEqual(times.get('again'), [ 0, 1 ]);
    assert.deepStrictEqual(times.get('once'), [ 0 ]);
  },

  async delay_level() {
    const topic = `Delay-${name}`;
    const arrived = new Map();
    await consumer(`GID-Delay-${name}`, topic, '*', async each => { arrived.set(each.body.toString(), Date.now()); });
    const from = await producer();
    const due = new Map();
    for (const level of [ 1, 2 ]) {
      const made = message(topic, 'A', `level ${level}`);
      made.delayTimeLevel = level;
      due.set(`level ${level}`, Date.now() + level * 1000);
      await from.send(made);
    }
    await until(() => `delayed messages, have ${arrived.size}`, () => arrived.size === 2);
    for (const [ body, time ] of due) {
      const late = arrived.get(body) - time;
      assert(late >= 0 && late < LATE_MS, `${body} came ${late} ms after its time`);
    }
  },

  async sharding_key() {
    const topic = `Shard-${name}`;
    const received = new Received();
    await consumer(`GID-Shard-${name}`, topic, '*', async each => { received.push(each); });
    const sent = await send(await producer(), topic, 'shard-', (made, i) => { made.shardingKey = [ 'red', 'blue' ][i % 2]; });
    await received.exactly([ ...sent.keys() ]);
    for (const key of [ 'red', 'blue' ]) {
      const own = received.filter(each => each.shardingKey === key);
      assert.strictEqual(new Set(own.map(each => each.queueId)).size, 1);
      const numbers = own.map(each => Number(each.body.toString().slice(6)));
      assert.deepStrictEqual(numbers, [ ...numbers ].sort((a, b) => a - b));
    }
  },

  async broadcasting() {
    const topic = `Broadcast-${name}`;
    const both = [ new Received(), new Received() ];
    for (const received of both) {
      await consumer(`GID-Broadcast-${name}`, topic, '*', async each => { received.push(each); }, { isBroadcast: true });
    }
    const sent = await send(await producer(), topic, 'broadcast-');
    await Promise.all(both.map(received => received.exactly([ ...sent.keys() ])));
  },

  async resume() {
    const topic = `Resume-${name}`;
    const from = await producer();
    for (const prefix of [ 'first-', 'second-' ]) {
      const sent = await send(from, topic, prefix);
      const received = new Received();
      const reader = await consumer(`GID-Resume-${name}`, topic, '*', async each => { received.push(each); });
      await received.exactly([ ...sent.keys() ]);
      await reader.close();
    }
  },

  async compressed() {
    const topic = `Packed-${name}`;
    const received = new Received();
    await consumer(`GID-Packed-${name}`, topic, '*', async each => { received.push(each); });
    const body = 'words and words '.repeat(2000);
    await (await producer()).send(message(topic, 'A', body));
    await received.exactly([ body ]);
  },
};

async function run(scenario) {
  try {
    await scenarios[scenario]();
    console.log(`RESULT ${scenario} ok`);
    return true;
  } catch (error) {
    console.log(error.stack);
    console.log(`RESULT ${scenario} failed: ${error.message.split('\n').join(' ')}`);
    return false;
  }
}

Promise.all((wanted.length ? wanted : Object.keys(scenarios)).map(run)).then(outcomes => {
  const passed = outcomes.every(Boolean);
  if (!passed) console.log(`errors on the way: ${[ ...new Set(errors) ].join('; ')}`);
  console.log(passed ? 'PASS' : 'FAIL');
  // Timers of closed clients would keep the process alive.
  process.exit(passed ? 0 : 1);
});
