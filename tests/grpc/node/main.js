// RocketMQ 5's own Node SDK against a server of its protocol.
//
//     node main.js host:port prefix case...
//
// Each case has a topic, `prefix-case`, which must exist, and a consumer group of the same name. The group of `fifo` must
// be orderly, the topic of `workers` should have one queue, and the server should ask about transactions after seconds.
//
// Prints a line of JSON for each case: {"case", "ok", "seconds", "detail"}.
'use strict';

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const PATIENCE_MS = 60_000;
// The server lets a receive wait no shorter.
const POLL_MS = 5_000;
// A new group reads only messages that are sent after its first receive. Probes are sent until one arrives.
const PROBE = 'probe';

class Failed extends Error {}

const sleep = ms => new Promise(resolve => setTimeout(resolve, ms));

function check(condition, ...details) {
  if (!condition) throw new Failed(details.map(each => (typeof each === 'string' ? each : JSON.stringify(each))).join(' '));
}

function same(found, wanted, what = 'found') {
  check(JSON.stringify(found) === JSON.stringify(wanted), what, found, 'not', wanted);
}

async function waitUntil(condition, what) {
  const deadline = Date.now() + PATIENCE_MS;
  while (!condition()) {
    check(Date.now() < deadline, 'not in time; so far:', what());
    await sleep(20);
  }
}

function counts(bodies) {
  const found = {};
  for (const body of bodies) found[body] = (found[body] || 0) + 1;
  return found;
}

const numbered = count => Array.from({ length: count }, (_, number) => `body ${number}`);

// A listener that keeps its messages in the order of its returns. `hear` gives the result for each, by default SUCCESS.
class Inbox {
  constructor(hear = () => ConsumeResult.SUCCESS) {
    this.hear = hear;
    this.isReady = false;
    this.messages = [];
  }

  async consume(message) {
    if (String(message.body) === PROBE) {
      this.isReady = true;
      return ConsumeResult.SUCCESS;
    }
    const attempt = message.deliveryAttempt;
    const result = await this.hear(message);
    this.messages.push({ message, attempt });
    return result;
  }

  get bodies() {
    return this.messages.map(each => String(each.message.body));
  }
}

// Commits every half message.
class Checker {
  constructor() {
    this.asked = [];
  }

  async check(message) {
    this.asked.push(message);
    return TransactionResolution.COMMIT;
  }
}

// A topic, a group and their clients.
class Case {
  constructor(endpoints, topic) {
    this.common = { endpoints, namespace: '' };
    this.topic = topic;
  }

  async started(client) {
    await client.startup();
    return client;
  }

  producer(checker) {
    return this.started(new Producer({ ...this.common, topics: [this.topic], checker }));
  }

  push(inbox, filter = '*') {
    return this.started(new PushConsumer({
      ...this.common,
      consumerGroup: this.topic,
      subscriptions: new Map([[this.topic, filter]]),
      messageListener: inbox,
    }));
  }

  simple() {
    return this.started(new SimpleConsumer({
      ...this.common,
      consumerGroup: this.topic,
      subscriptions: new Map([[this.topic, '*']]),
      awaitDuration: POLL_MS,
    }));
  }

  message(body, { properties = {}, ...options } = {}) {
    return { topic: this.topic, body: Buffer.from(body), properties: new Map(Object.entries(properties)), ...options };
  }

  async sendUntil(isReady, producer, probe) {
    const deadline = Date.now() + PATIENCE_MS;
    while (!isReady()) {
      check(Date.now() < deadline, 'no probe has come');
      await producer.send(this.message(PROBE, probe));
      await sleep(200);
    }
  }

  // A push consumer that has begun to receive; returns a producer.
  async pushing(inbox, { filter, probe, checker } = {}) {
    const producer = await this.producer(checker);
    await this.push(inbox, filter);
    await this.sendUntil(() => inbox.isReady, producer, probe);
    return producer;
  }

  // A producer, and a simple consumer whose group has begun.
  async receiving() {
    const producer = await this.producer();
    const consumer = await this.simple();
    let first;
    const receiving = consumer.receive(32, 30_000).then(messages => { first = messages; });
    await this.sendUntil(() => first !== undefined, producer);
    await receiving;
    for (const message of first) await consumer.ack(message);
    return { producer, consumer };
  }
}

// One receive. Probes are acknowledged.
async function receive(consumer, invisibleMs = 30_000) {
  const messages = await consumer.receive(32, invisibleMs);
  for (const probe of messages.filter(each => String(each.body) === PROBE)) await consumer.ack(probe);
  return messages.filter(each => String(each.body) !== PROBE);
}

// Receives until there are `count` messages; the last receive may bring more.
async function receiveSome(consumer, count, invisibleMs) {
  const messages = [];
  const deadline = Date.now() + PATIENCE_MS;
  while (messages.length < count) {
    check(Date.now() < deadline, 'not in time; so far:', messages.map(each => String(each.body)));
    messages.push(...await receive(consumer, invisibleMs));
  }
  return messages;
}

const CASES = {
  async send(one) {
    const { producer, consumer } = await one.receiving();
    const ids = {};
    for (let number = 0; number < 10; number++) {
      const properties = { number: String(number), text: 'grün' };
      const message = one.message(`body ${number}`, { tag: `tag${number}`, keys: [`key${number}`, 'all'], properties });
      ids[`body ${number}`] = (await producer.send(message)).messageId;
    }
    const got = await receiveSome(consumer, 10);
    for (const message of got) await consumer.ack(message);
    same(got.map(each => String(each.body)).sort(), Object.keys(ids).sort());
    for (const message of got) {
      const number = String(message.body).slice('body '.length);
      const properties = Object.fromEntries([...message.properties].sort());
      same(
        [message.topic, message.tag, message.keys, properties, message.deliveryAttempt],
        [one.topic, `tag${number}`, [`key${number}`, 'all'], { number, text: 'grün' }, 1],
      );
      same(message.messageId, ids[`body ${number}`], 'message id');
      check(!message.corrupted, 'the digest is wrong');
      check(Math.abs(message.bornTimestamp - Date.now()) < 60_000, message.bornTimestamp);
    }
  },

  async push(one) {
    const inbox = new Inbox();
    const producer = await one.pushing(inbox);
    const bodies = numbered(50);
    for (const body of bodies) await producer.send(one.message(body));
    await waitUntil(() => new Set(inbox.bodies).size === bodies.length, () => inbox.bodies);
    await sleep(1_000);
    same(inbox.bodies.sort(), bodies.sort());
  },

  async tags(one) {
    const inbox = new Inbox();
    const producer = await one.pushing(inbox, { filter: 'a || b', probe: { tag: 'a' } });
    for (const tag of ['c', 'a', 'b', 'c', 'a']) await producer.send(one.message(`of ${tag}`, { tag }));
    await producer.send(one.message('of none'));
    await waitUntil(() => inbox.bodies.length >= 3, () => inbox.bodies);
    await sleep(1_000);
    same(inbox.bodies.sort(), ['of a', 'of a', 'of b']);
  },

  async sql(one) {
    const inbox = new Inbox();
    const filter = new FilterExpression("color = 'red' AND number > 3", FilterType.SQL);
    const producer = await one.pushing(inbox, { filter, probe: { properties: { color: 'red', number: '4' } } });
    for (let number = 0; number < 8; number++) {
      for (const color of ['blue', 'red']) {
        await producer.send(one.message(`${color} ${number}`, { properties: { color, number: String(number) } }));
      }
    }
    await waitUntil(() => inbox.bodies.length >= 4, () => inbox.bodies);
    await sleep(1_000);
    same(inbox.bodies.sort(), ['red 4', 'red 5', 'red 6', 'red 7']);
  },

  async fifo(one) {
    let hasFailed = false;
    const inbox = new Inbox(async message => {
      await sleep(20);
      if (String(message.body) !== 'b 3' || hasFailed) return ConsumeResult.SUCCESS;
      hasFailed = true;
      return ConsumeResult.FAILURE;
    });
    const producer = await one.pushing(inbox, { probe: { messageGroup: 'a' } });
    const groups = ['a', 'b', 'c', 'd'];
    for (let number = 0; number < 10; number++) {
      for (const messageGroup of groups) await producer.send(one.message(`${messageGroup} ${number}`, { messageGroup }));
    }
    await waitUntil(() => new Set(inbox.bodies).size === 40 && inbox.bodies.length > 40, () => inbox.bodies);
    for (const group of groups) {
      const wanted = Array.from({ length: 10 }, (_, number) => `${group} ${number}`);
      if (group === 'b') wanted.splice(3, 0, 'b 3');
      same(inbox.bodies.filter(body => body.startsWith(group)), wanted);
    }
  },

  async delay(one) {
    let came;
    const inbox = new Inbox(() => {
      came = Date.now();
      return ConsumeResult.SUCCESS;
    });
    const producer = await one.pushing(inbox);
    const deliveryTimestamp = new Date(Date.now() + 3_000);
    await producer.send(one.message('later', { deliveryTimestamp }));
    await waitUntil(() => came !== undefined, () => inbox.bodies);
    const late = came - deliveryTimestamp;
    check(late >= 0 && late < 10_000, `came ${late} ms after its time`);
    await waitUntil(() => inbox.messages.length === 1, () => inbox.bodies);
    same(inbox.messages[0].message.deliveryTimestamp, deliveryTimestamp);
  },

  async recall(one) {
    const inbox = new Inbox();
    const producer = await one.pushing(inbox);
    const receipts = [];
    for (const body of ['recalled', 'kept']) receipts.push(await producer.send(one.message(body, { delay: 4_000 })));
    const recalled = await producer.recallMessage(one.topic, receipts[0].recallHandle);
    same(recalled.messageId, receipts[0].messageId);
    await waitUntil(() => inbox.bodies.length > 0, () => inbox.bodies);
    await sleep(2_000);
    same(inbox.bodies, ['kept']);
    let error;
    await producer.recallMessage(one.topic, receipts[1].recallHandle).catch(raised => { error = raised; });
    check(error !== undefined, 'a message that was delivered has been recalled');
  },

  async transaction_commit(one) {
    const inbox = new Inbox();
    const producer = await one.pushing(inbox, { checker: new Checker() });
    const transaction = producer.beginTransaction();
    const receipt = await producer.send(one.message('half'), transaction);
    await sleep(1_000);
    same(inbox.bodies, [], 'before the commit');
    await transaction.commit();
    await waitUntil(() => inbox.bodies.length > 0, () => inbox.bodies);
    same(inbox.messages[0].message.messageId, receipt.messageId);
  },

  async transaction_rollback(one) {
    const inbox = new Inbox();
    const checker = new Checker();
    const producer = await one.pushing(inbox, { checker });
    const transaction = producer.beginTransaction();
    await producer.send(one.message('half'), transaction);
    await transaction.rollback();
    await producer.send(one.message('plain'));
    await waitUntil(() => inbox.bodies.length > 0, () => inbox.bodies);
    await sleep(6_000); // longer than the server takes to ask
    same(inbox.bodies, ['plain']);
    same(checker.asked.length, 0, 'times that it was asked');
  },

  async transaction_check(one) {
    const inbox = new Inbox();
    const checker = new Checker();
    const producer = await one.pushing(inbox, { checker });
    const message = one.message('half', { tag: 't', properties: { color: 'red' } });
    const receipt = await producer.send(message, producer.beginTransaction());
    await waitUntil(() => inbox.bodies.length > 0, () => `asked ${checker.asked.length} times`);
    for (const { messageId, topic, tag, properties, body } of [checker.asked[0], inbox.messages[0].message]) {
      same([messageId, topic, tag, properties.get('color'), String(body)], [receipt.messageId, one.topic, 't', 'red', 'half']);
    }
    await sleep(4_000);
    same([checker.asked.length, inbox.bodies], [1, ['half']]);
  },

  async retry(one) {
    const inbox = new Inbox(message => {
      const fails = String(message.body) === 'body 3' && message.deliveryAttempt === 1;
      return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
    });
    const producer = await one.pushing(inbox);
    for (const body of numbered(6)) await producer.send(one.message(body, { tag: 't' }));
    await waitUntil(() => inbox.bodies.length >= 7, () => inbox.bodies);
    await sleep(3_000);
    same(inbox.bodies.sort(), [...numbered(6), 'body 3'].sort());
    const [first, second] = inbox.messages.filter(each => String(each.message.body) === 'body 3');
    same([first.attempt, second.attempt], [1, 2], 'attempts');
    same(
      [second.message.messageId, second.message.topic, second.message.tag],
      [first.message.messageId, one.topic, 't'],
    );
  },

  async change_invisible(one) {
    const { producer, consumer } = await one.receiving();
    for (const body of ['sooner', 'later']) await producer.send(one.message(body));
    const got = {};
    for (const message of await receiveSome(consumer, 2, 10_000)) got[String(message.body)] = message;
    const began = Date.now();
    // The SDK's type says that the handle cannot change, and changes it.
    await consumer.changeInvisibleDuration(got.later, 60_000);
    await consumer.changeInvisibleDuration(got.sooner, 1_000);
    const [again] = await receiveSome(consumer, 1);
    const ms = Date.now() - began;
    same([String(again.body), again.deliveryAttempt], ['sooner', 2]);
    check(ms > 900 && ms < 8_000, `came again after ${ms} ms`);
    await consumer.ack(again);
    while (Date.now() < began + 14_000) same((await receive(consumer)).length, 0, 'messages before their time');
    await consumer.ack(got.later);
  },

  async workers(one) {
    const inboxes = Array.from({ length: 6 }, () => new Inbox(async () => {
      await sleep(50);
      return ConsumeResult.SUCCESS;
    }));
    const producer = await one.pushing(inboxes[0]);
    for (const inbox of inboxes.slice(1)) await one.push(inbox);
    await one.sendUntil(() => inboxes.every(inbox => inbox.isReady), producer);
    const bodies = numbered(200);
    for (const body of bodies) await producer.send(one.message(body));
    const heard = () => inboxes.flatMap(inbox => inbox.bodies);
    await waitUntil(() => heard().length >= bodies.length, () => heard().length);
    await sleep(2_000);
    same(counts(heard().sort()), counts(bodies.sort()));
    const shares = inboxes.map(inbox => inbox.bodies.length);
    check(shares.filter(share => share > 0).length >= 3, 'most consumers got nothing:', shares);
  },

  async slow(one) {
    let calls = 0;
    const inbox = new Inbox(async () => {
      calls++;
      await sleep(40_000);
      return ConsumeResult.SUCCESS;
    });
    const producer = await one.pushing(inbox);
    await producer.send(one.message('slow'));
    await waitUntil(() => inbox.bodies.length > 0, () => calls);
    await sleep(5_000);
    same(calls, 1, 'calls');
  },

  // Somebody restarts the server in the meantime.
  async restart(one) {
    const inbox = new Inbox();
    const producer = await one.pushing(inbox);
    const bodies = numbered(100);
    for (const body of bodies) {
      const deadline = Date.now() + PATIENCE_MS;
      for (;;) {
        try {
          await producer.send(one.message(body));
          break;
        } catch (error) {
          check(Date.now() < deadline, 'no send succeeds:', String(error));
          await sleep(100);
        }
      }
      await sleep(100);
    }
    // A message whose answer or acknowledgement was lost comes twice.
    const missing = () => bodies.filter(body => !inbox.bodies.includes(body));
    await waitUntil(() => missing().length === 0, () => `missing ${missing()}`);
  },
};

function say(line) {
  console.log(JSON.stringify(line));
}

async function main(endpoints, prefix, ...names) {
  for (const name of names) {
    const began = Date.now();
    let detail = null;
    try {
      await CASES[name](new Case(endpoints, `${prefix}-${name}`));
    } catch (error) {
      detail = error instanceof Failed ? error.message : String(error.stack || error);
    }
    say({ case: name, ok: detail === null, seconds: (Date.now() - began) / 1000, detail });
  }
  // A push consumer takes up to 20 s to shut down: it waits for the end of its poll.
  process.exit(0);
}

main(...process.argv.slice(2));
