// Scenarios of the official RocketMQ 5 client for Node.
//
// Usage: driver.js ENDPOINTS SCENARIO TOPIC GROUP [plain|tls] [ACCESS_KEY SECRET]. The last line is PASS, or FAIL
// with the reason; the exit code is 0 or 1.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const WAIT_MS = 60_000;
const [endpoints, scenario, topic, group, transport, accessKey, accessSecret] = process.argv.slice(2);
const configuration = {
  endpoints,
  requestTimeout: 10_000,
  sslEnabled: transport === 'tls',
  sessionCredentials: accessSecret ? { accessKey, accessSecret } : undefined,
};

// --- Parts ---

function check(holds, what) {
  if (!holds) throw new Error(what);
}

async function until(condition, what) {
  const end = Date.now() + WAIT_MS;
  while (!condition()) {
    check(Date.now() < end, what());
    await new Promise(resolve => setTimeout(resolve, 50));
  }
}

async function started(client) {
  await client.startup();
  return client;
}

const producer = (more = {}) => started(new Producer({ ...configuration, topics: [topic], ...more }));

const consumer = (filter = FilterExpression.SUB_ALL) => started(new SimpleConsumer({
  ...configuration, consumerGroup: group, subscriptions: new Map([[topic, filter]]), awaitDuration: 10_000,
}));

const push = consume => started(new PushConsumer({
  ...configuration, consumerGroup: group, subscriptions: new Map([[topic, '*']]), messageListener: { consume },
}));

const message = (text, more = {}) => ({ topic, body: Buffer.from(text), ...more });

const text = view => view.body.toString();

async function take(from, count) {
  const found = [];
  const end = Date.now() + WAIT_MS;
  while (found.length < count) {
    check(Date.now() < end, `only ${found.length} of ${count} messages`);
    for (const view of await from.receive(16, 30_000)) {
      check(!view.corrupted, `${text(view)} is corrupted`);
      found.push(view);
      await from.ack(view);
    }
  }
  return found;
}

function same(found, wanted, what) {
  check(JSON.stringify(found) === JSON.stringify(wanted), `${what} ${JSON.stringify(found)}`);
}

const numbers = count => Array.from({ length: count }, (_, number) => number);

// --- Scenarios ---

const scenarios = {
  async normal() {
    const sender = await producer();
    const receiver = await consumer();
    const sent = [];
    for (const number of numbers(10)) {
      const receipt = await sender.send(message(`body-${number}`, {
        tag: 'created', keys: [`k${number}`, 'all'], properties: new Map([['colour', 'red']]),
      }));
      sent.push(receipt.messageId);
    }
    const found = await take(receiver, 10);
    same(found.map(view => view.messageId).sort(), sent.sort(), 'ids');
    same(found.map(text).sort(), numbers(10).map(number => `body-${number}`), 'bodies');
    for (const view of found) {
      same([view.tag, view.keys.length, view.properties.get('colour'), view.deliveryAttempt],
        ['created', 2, 'red', 1], 'properties');
    }
    // No shutdown with TLS: the client may end with an error of a stream whose listeners it has just removed.
    if (transport !== 'tls') {
      await sender.shutdown();
      await receiver.shutdown();
    }
  },

  async fifo() {
    const sender = await producer();
    const receiver = await consumer();
    for (const number of numbers(12)) {
      await sender.send(message(`${number}`, { messageGroup: `group-${number % 2}` }));
    }
    const found = await take(receiver, 12);
    const of = name => found.filter(view => view.messageGroup === name).map(text);
    same(of('group-0'), ['0', '2', '4', '6', '8', '10'], 'order');
    same(of('group-1'), ['1', '3', '5', '7', '9', '11'], 'order');
  },

  async delay() {
    const sender = await producer();
    const receiver = await consumer();
    const due = Date.now() + 3000;
    await sender.send(message('later', { deliveryTimestamp: new Date(due) }));
    await take(receiver, 1);
    check(Date.now() >= due - 1000, `came ${due - Date.now()} ms early`);
  },

  async transaction() {
    const checked = [];
    const sender = await producer({
      checker: {
        async check(view) {
          checked.push(text(view));
          return text(view) === 'rolled back' ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
        },
      },
    });
    const receiver = await consumer();
    const committed = sender.beginTransaction();
    await sender.send(message('committed'), committed);
    await committed.commit();
    const rolledBack = sender.beginTransaction();
    await sender.send(message('rolled back'), rolledBack);
    await rolledBack.rollback();
    await sender.send(message('checked'), sender.beginTransaction());
    const found = new Set(); // a broker may ask for what was just committed, too: it comes twice
    while (found.size < 2) (await take(receiver, 1)).forEach(view => found.add(text(view)));
    same([...found].sort(), ['checked', 'committed'], 'bodies');
    check(checked.includes('checked'), `checked ${checked}`);
  },

  async push() {
    const seen = [];
    const receiver = await push(async view => {
      if (text(view) === 'body-3' && view.deliveryAttempt === 1) return ConsumeResult.FAILURE;
      seen.push(`${text(view)}/${view.deliveryAttempt}`);
      return ConsumeResult.SUCCESS;
    });
    const sender = await producer();
    for (const number of numbers(10)) await sender.send(message(`body-${number}`));
    await until(() => seen.length >= 10, () => `saw ${seen}`);
    same(seen.sort(), numbers(10).map(number => `body-${number}/${number === 3 ? 2 : 1}`), 'saw');
    await receiver.shutdown();
  },

  async 'push-fifo'() {
    const seen = [];
    await push(async view => {
      seen.push(text(view));
      return ConsumeResult.SUCCESS;
    });
    const sender = await producer();
    for (const number of numbers(10)) await sender.send(message(`${number}`, { messageGroup: 'one' }));
    await until(() => seen.length >= 10, () => `saw ${seen}`);
    same(seen, numbers(10).map(String), 'order');
  },

  async filter() {
    const sender = await producer();
    const receiver = await consumer(new FilterExpression('b || c'));
    for (const tag of 'abcd') await sender.send(message(`tag ${tag}`, { tag }));
    same((await take(receiver, 2)).map(text).sort(), ['tag b', 'tag c'], 'by tag');
    receiver.unsubscribe(topic);
    await receiver.subscribe(topic, new FilterExpression('size > 5', FilterType.SQL));
    for (const size of ['2', '7']) {
      await sender.send(message(`size ${size}`, { tag: 'b', properties: new Map([['size', size]]) }));
    }
    same((await take(receiver, 1)).map(text), ['size 7'], 'by SQL');
  },

  async invisible() {
    const sender = await producer();
    const receiver = await consumer();
    await sender.send(message('again'));
    let found = [];
    const end = Date.now() + WAIT_MS;
    while (!found.length) {
      check(Date.now() < end, 'no message');
      found = await receiver.receive(1, 60_000);
    }
    await receiver.changeInvisibleDuration(found[0], 1000);
    const [second] = await take(receiver, 1);
    same([second.messageId, second.deliveryAttempt], [found[0].messageId, 2], 'again');
  },

  async refused() {
    try {
      await (await producer()).send(message('never'));
    } catch (error) {
      // Of the reason why it has no route, the client says nothing.
      check(/40100|signature|auth|route/i.test(String(error)), String(error));
      return;
    }
    throw new Error('was let in');
  },
};

scenarios[scenario]().then(
  () => console.log('PASS'),
  error => {
    console.log(error.stack);
    console.log(`FAIL ${error}`);
    process.exitCode = 1;
  },
).finally(() => process.exit());
