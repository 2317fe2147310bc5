package kit;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.MessageExt;

/** Orderly consumption of queues that a selector has chosen. */
final class OrderCases {
    private static final int SUSPEND_MS = 200;

    private OrderCases() {
    }

    /** One message is suspended twice; until it is through, its queue stands still. */
    static void suspend(Scene scene) throws Exception {
        String topic = scene.topic();
        send(scene, topic, 6, 5);
        Received tried = new Received();
        Received done = new Received();
        Map<Integer, AtomicInteger> busy = new ConcurrentHashMap<>();
        AtomicInteger together = new AtomicInteger();
        DefaultMQPushConsumer consumer = scene.consumer(scene.named("group"));
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            AtomicInteger inQueue = busy.computeIfAbsent(context.getMessageQueue().getQueueId(), id -> new AtomicInteger());
            together.accumulateAndGet(inQueue.incrementAndGet(), Math::max);
            MessageExt message = messages.get(0);
            tried.add(message);
            boolean suspends = message.getKeys().equals("order2-1") && message.getReconsumeTimes() < 2;
            if (!suspends) {
                done.add(message);
            }
            inQueue.decrementAndGet();
            context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
            return suspends ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        done.awaitExactly(30, Scene.PATIENCE);
        done.checkOrder();
        done.by(delivery -> delivery.message().getUserProperty("order")).forEach((order, list) -> Check.equal(
            "steps of order " + order,
            List.of("0", "1", "2", "3", "4"),
            list.stream().map(delivery -> delivery.message().getUserProperty("step")).toList()));
        Check.equal("listeners in one queue at a time", 1, together.get());
        List<Received.Delivery> suspended = tried.by(delivery -> delivery.message().getKeys()).get("order2-1");
        Check.equal("tries", List.of(0, 1, 2), suspended.stream().map(Received.Delivery::reconsumeTimes).toList());
        double paused = suspended.get(2).at() - suspended.get(0).at();
        Check.within("seconds of two suspensions", 2 * SUSPEND_MS / 1000.0 - 0.02, 10, paused);
        int queue = suspended.get(0).message().getQueueId();
        long meanwhile = tried.all().stream()
            .filter(one -> one.message().getQueueId() == queue)
            .filter(one -> one.at() > suspended.get(0).at() && one.at() < suspended.get(2).at())
            .filter(one -> !one.message().getKeys().equals("order2-1"))
            .count();
        Check.equal("messages that overtook the suspended one", 0L, meanwhile);
    }

    /** A message that always suspends is dead after its retries, and those behind it come. */
    static void deadLetter(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        send(scene, topic, 1, 4);
        Received tried = new Received();
        Received done = new Received();
        DefaultMQPushConsumer consumer = scene.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            MessageExt message = messages.get(0);
            tried.add(message);
            context.setSuspendCurrentQueueTimeMillis(SUSPEND_MS);
            if (message.getKeys().equals("order0-1")) {
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            done.add(message);
            return ConsumeOrderlyStatus.SUCCESS;
        });
        consumer.start();
        done.awaitExactly(3, Scene.PATIENCE);
        Check.equal("those that were consumed", List.of("order0-0", "order0-2", "order0-3"), keys(done));
        List<Received.Delivery> tries = tried.by(delivery -> delivery.message().getKeys()).get("order0-1");
        Check.equal("tries", List.of(0, 1, 2), tries.stream().map(Received.Delivery::reconsumeTimes).toList());
        Received.Delivery dead = scene.deadLetters(group, 1).all().get(0);
        Check.equal("body of the dead letter", "order 0, step 1", dead.body());
        Check.equal("its keys", "order0-1", dead.message().getKeys());
        Check.equal("its tags", "order", dead.message().getTags());
        Check.equal("its step", "1", dead.message().getUserProperty("step"));
    }

    private static List<String> keys(Received received) {
        return received.all().stream().map(delivery -> delivery.message().getKeys()).toList();
    }

    private static void send(Scene scene, String topic, int orders, int steps) throws Exception {
        Map<Integer, Integer> queues = new HashMap<>();
        for (int step : IntStream.range(0, steps).toArray()) {
            for (int order : IntStream.range(0, orders).toArray()) {
                var message = Scene.message(topic, "order", "order" + order + "-" + step, "order " + order + ", step " + step);
                message.putUserProperty("order", String.valueOf(order));
                message.putUserProperty("step", String.valueOf(step));
                SendResult result = scene.producer().send(message, (all, sent, number) -> all.get((int) number % all.size()), order);
                int queue = result.getMessageQueue().getQueueId();
                Check.equal("queue of the order", queues.computeIfAbsent(order, new_ -> queue), queue);
            }
        }
    }
}
