package kit;

import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.common.message.MessageExt;

/**
 * A member of a group that says what it gets.
 *
 * <pre>consume --topic t --group g [--orderly] [--broadcasting] [--expression tags] [--instance name] [--expect n]
 *     [--work-ms 0] [--retries -1] [--level 0]</pre>
 *
 * Runs until its standard input is closed or, with {@code --expect}, so many messages have come; then it leaves the
 * group in order. A message whose body begins with "fail" fails each time, after {@code --level} of delay. Lines:
 * {@code {"ready", "client_id"}}, {@code {"queues"}} when they change, {@code {"body", "queue_id", "offset", ...}} when
 * the listener is given a message, {@code {"consumed", "queue_id", "offset", "at"}} when it is through with it, or
 * {@code failed} instead, and {@code {"stopped"}}. {@code at} is in seconds of a clock that all processes share.
 */
final class Consume {
    private static final long LOOK_MS = 50;

    private final Options options;
    private final AtomicInteger count = new AtomicInteger();
    private final CountDownLatch done = new CountDownLatch(1);

    private Consume(Options options) {
        this.options = options;
    }

    static void run(Options options) throws Exception {
        new Consume(options).run();
    }

    private void run() throws Exception {
        try (Scene scene = new Scene("consume", options)) {
            DefaultMQPushConsumer consumer = scene.consumer(options.text("group"));
            if (options.has("broadcasting")) {
                Versions.setBroadcasting(consumer);
            }
            if (options.has("instance")) {
                consumer.setInstanceName(options.text("instance"));
            }
            consumer.setMaxReconsumeTimes(options.number("retries", -1));
            consumer.setAwaitTerminationMillisWhenShutdown(5_000);
            consumer.subscribe(options.text("topic"), options.text("expression", "*"));
            listen(consumer);
            consumer.start();
            Kit.print(Map.of("ready", true, "client_id", consumer.buildMQClientId()));
            Thread input = new Thread(this::awaitEndOfInput);
            input.setDaemon(true);
            input.start();
            Collection<Integer> before = null;
            do {
                Collection<Integer> held = Scene.held(consumer);
                if (!held.equals(before)) {
                    Kit.print(Map.of("queues", held));
                    before = held;
                }
            } while (!done.await(LOOK_MS, TimeUnit.MILLISECONDS));
        }
        Kit.print(Map.of("stopped", true));
    }

    private void listen(DefaultMQPushConsumer consumer) {
        if (options.has("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> consume(messages.get(0))
                ? ConsumeOrderlyStatus.SUCCESS
                : ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT);
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                context.setDelayLevelWhenNextConsume(options.number("level", 0));
                return consume(messages.get(0))
                    ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS
                    : ConsumeConcurrentlyStatus.RECONSUME_LATER;
            });
        }
    }

    private boolean consume(MessageExt message) {
        String body = new String(message.getBody(), java.nio.charset.StandardCharsets.UTF_8);
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("body", body);
        line.put("topic", message.getTopic());
        line.put("queue_id", message.getQueueId());
        line.put("offset", message.getQueueOffset());
        line.put("msg_id", message.getMsgId());
        line.put("tags", message.getTags());
        line.put("keys", message.getKeys());
        line.put("reconsume_times", message.getReconsumeTimes());
        line.put("at", now());
        Kit.print(line);
        try {
            Thread.sleep(options.number("work-ms", 0));
        } catch (InterruptedException stopped) {
            return end("failed", message, body);
        }
        if (body.startsWith("fail")) {
            return end("failed", message, body);
        }
        end("consumed", message, body);
        if (count.incrementAndGet() == options.number("expect", Integer.MAX_VALUE)) {
            done.countDown();
        }
        return true;
    }

    private static boolean end(String outcome, MessageExt message, String body) {
        Kit.print(
            Map.of(outcome, body, "queue_id", message.getQueueId(), "offset", message.getQueueOffset(), "at", now()));
        return outcome.equals("consumed");
    }

    private static double now() {
        return System.nanoTime() / 1e9;
    }

    private void awaitEndOfInput() {
        try {
            System.in.transferTo(java.io.OutputStream.nullOutputStream());
        } catch (java.io.IOException broken) {
            // As good as closed.
        }
        done.countDown();
    }
}
