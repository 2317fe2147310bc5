// The Node client of RocketMQ (ali-ons) against a server of its protocol: sends, consumes, and has one message fail once.
// This client has the server choose the delay: 10 s. The topic must exist; all groups are named after it.
//
//     node main.js host:port topic
//
// Prints a line of JSON, {"case", "ok", "seconds", "detail", "figures"}, and exits with 0 if all is well.
'use strict';

const httpclient = require('urllib');
const { Consumer, Message, Producer } = require('ali-ons');

const COUNT = 20;
const PATIENCE_MS = 90_000;
const logger = { debug() {}, info() {}, warn() {}, error(...words) { console.error(...words); } };

async function main(nameSrv, topic) {
  const figures = {};
  const common = { httpclient, nameSrv, logger };
  const producer = new Producer({ ...common, producerGroup: `${topic}-producers` });
  await producer.ready();
  const ids = {};
  for (let i = 0; i < COUNT; i++) {
    const message = new Message(topic, `tag${i % 2}`, `body ${i}`);
    message.keys = [`key${i}`];
    const result = await producer.send(message);
    if (result.sendStatus !== 'SEND_OK') throw new Error(`status of the send: ${result.sendStatus}`);
    ids[`body ${i}`] = result.msgId;
  }
  const times = {};
  const faults = [];
  let failedAt = 0;
  const consumer = new Consumer({
    ...common,
    consumerGroup: `${topic}-consumers`,
    consumeFromWhere: 'CONSUME_FROM_FIRST_OFFSET',
  });
  const done = new Promise(resolve => {
    consumer.subscribe(topic, '*', async message => {
      const body = message.body.toString();
      times[body] = (times[body] || 0) + 1;
      if (times[body] === 1 && message.msgId !== ids[body]) faults.push(`${body} has id ${message.msgId}, not ${ids[body]}`);
      if (body === 'body 3' && times[body] === 1) {
        failedAt = Date.now();
        return Consumer.ACTION_RETRY;
      }
      if (body === 'body 3') figures.first_retry_seconds = (Date.now() - failedAt) / 1000;
      if (Object.keys(times).length === COUNT && times['body 3'] === 2) resolve();
      return undefined;
    });
  });
  await consumer.ready();
  await Promise.race([done, new Promise(resolve => setTimeout(resolve, PATIENCE_MS))]);
  await consumer.close();
  await producer.close();
  if (faults.length) throw new Error(faults.join('; '));
  for (let i = 0; i < COUNT; i++) {
    const wanted = i === 3 ? 2 : 1;
    if (times[`body ${i}`] !== wanted) {
      throw new Error(`body ${i} came ${times[`body ${i}`]} times, expected ${wanted}; all: ${JSON.stringify(times)}`);
    }
  }
  return figures;
}

const begin = Date.now();
const line = { case: 'node', ok: true, seconds: 0, detail: null, figures: {} };
main(process.argv[2], process.argv[3])
  .then(figures => { line.figures = figures; }, error => { line.ok = false; line.detail = String(error.stack || error); })
  .then(() => {
    line.seconds = (Date.now() - begin) / 1000;
    console.log(JSON.stringify(line));
    process.exit(line.ok ? 0 : 1);
  });
