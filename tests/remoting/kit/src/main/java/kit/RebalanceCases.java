package kit;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.common.message.MessageQueue;

/** Members of one group share the queues of a topic, and hand them over. */
final class RebalanceCases {
    private static final int LOAD = 4_000;
    /** After each send, so that the load lasts for some changes of members. */
    private static final long PAUSE_MS = 2;
    private static final double HAND_OVER_SECONDS = 60;

    private RebalanceCases() {
    }

    /**
     * Two members have two queues each; one leaves, and the other has all four. A server may hand over a queue before its
     * last messages are committed: those that come twice are counted.
     */
    static void split(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        Received received = new Received();
        DefaultMQPushConsumer first = member(scene, group, topic, "first", received, 0);
        awaitHeld(first, 4);
        send(scene, topic, "alone", 20);
        received.await(20, Scene.PATIENCE);
        double begin = Received.now();
        DefaultMQPushConsumer second = member(scene, group, topic, "second", received, 0);
        awaitHeld(second, 2);
        awaitHeld(first, 2);
        scene.figures.put("split_seconds", Received.now() - begin);
        Set<Integer> ofFirst = Scene.held(first);
        Set<Integer> ofSecond = Scene.held(second);
        Check.that(ofFirst.stream().noneMatch(ofSecond::contains), "both have queues: %s and %s", ofFirst, ofSecond);
        send(scene, topic, "together", 40);
        received.awaitDifferent(60, Scene.PATIENCE);
        for (Received.Delivery delivery : of(received, "together")) {
            Set<Integer> own = delivery.member().equals("first") ? ofFirst : ofSecond;
            int queue = delivery.message().getQueueId();
            Check.that(own.contains(queue), "%s got a message of queue %d, its own are %s", delivery.member(), queue, own);
        }
        begin = Received.now();
        first.shutdown();
        awaitHeld(second, 4);
        scene.figures.put("leave_seconds", Received.now() - begin);
        send(scene, topic, "left", 20);
        received.awaitDifferent(80, Scene.PATIENCE);
        Check.equal("different messages", 80, received.by(Received.Delivery::body).size());
        Check.equal("members of the last messages", Set.of("second"),
            Set.copyOf(of(received, "left").stream().map(Received.Delivery::member).toList()));
        scene.figures.put("doubled", received.doubled());
    }

    private static List<Received.Delivery> of(Received received, String part) {
        return received.all().stream().filter(delivery -> delivery.body().startsWith(part)).toList();
    }

    /** Members come and go while messages come: none is lost. Those that come twice are counted. */
    static void load(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        Received received = new Received();
        List<DefaultMQPushConsumer> members = new ArrayList<>();
        members.add(member(scene, group, topic, "member0", received, 1));
        AtomicInteger sent = new AtomicInteger();
        Thread sender = new Thread(() -> {
            try {
                for (int i = 0; i < LOAD; i++) {
                    scene.producer().send(Scene.message(topic, "tag", "key" + i, "body " + i));
                    sent.incrementAndGet();
                    Thread.sleep(PAUSE_MS);
                }
            } catch (Exception error) {
                scene.figures.put("send_error", error.toString());
            }
        });
        scene.producer();
        sender.start();
        double begin = Received.now();
        for (int change = 1; sent.get() < LOAD && sender.isAlive() || change <= 6; change++) {
            if (members.size() >= 3 || members.size() == 2 && change % 2 == 0) {
                members.remove(0).shutdown();
            } else {
                members.add(member(scene, group, topic, "member" + change, received, 1));
            }
            scene.figures.put("changes", change);
            Thread.sleep(1_500);
        }
        sender.join();
        Check.equal("sent", LOAD, sent.get());
        double deadline = Received.now() + HAND_OVER_SECONDS;
        while (lost(received).size() > 0 && Received.now() < deadline) {
            Thread.sleep(200);
        }
        Thread.sleep(1_000);
        scene.figures.put("lost", lost(received).size());
        scene.figures.put("doubled", received.doubled());
        scene.figures.put("load_seconds", Received.now() - begin);
        Check.equal("lost", List.of(), lost(received));
        checkMembers(scene, received);
        for (DefaultMQPushConsumer member : members) {
            Check.that(Scene.held(member).size() > 0, "a member has no queue at the end");
        }
    }

    private static List<String> lost(Received received) {
        Set<String> came = received.by(Received.Delivery::body).keySet();
        return IntStream.range(0, LOAD).mapToObj(i -> "body " + i).filter(body -> !came.contains(body)).toList();
    }

    private static void checkMembers(Scene scene, Received received) {
        Map<String, Integer> counts = new TreeMap<>();
        received.by(Received.Delivery::member).forEach((name, list) -> counts.put(name, list.size()));
        scene.figures.put("members", counts);
        Check.that(counts.size() > 2, "only %s got messages", counts);
    }

    private static DefaultMQPushConsumer member(Scene scene, String group, String topic, String name, Received to, long workMs)
            throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer(group);
        consumer.setInstanceName(scene.named(name));
        // What is at work when the member leaves is finished and committed.
        consumer.setAwaitTerminationMillisWhenShutdown(5_000);
        consumer.subscribe(topic, "*");
        Scene.take(consumer, message -> {
            to.add(name, message);
            try {
                Thread.sleep(workMs);
            } catch (InterruptedException stopped) {
                Thread.currentThread().interrupt();
            }
        });
        consumer.start();
        return consumer;
    }

    static void awaitHeld(DefaultMQPushConsumer consumer, int count) throws InterruptedException {
        double deadline = Received.now() + HAND_OVER_SECONDS;
        while (Scene.held(consumer).size() != count) {
            Check.that(Received.now() < deadline, "the member has queues %s, not %d of them", Scene.held(consumer), count);
            Thread.sleep(20);
        }
    }

    private static void send(Scene scene, String topic, String part, int count) throws Exception {
        List<MessageQueue> queues = scene.queues(topic);
        for (int i = 0; i < count; i++) {
            scene.producer().send(Scene.message(topic, "tag", "key", part + " " + i), queues.get(i % queues.size()));
        }
    }
}
