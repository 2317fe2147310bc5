package kit;

import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.MessageExt;

/** Consumers that leave rebalance to the broker, in a group that pops. */
final class PopCases {
    /** RocketMQ's client may look for its retry topic 20 s after the first failure. */
    private static final double FIRST_RETRY_SECONDS = 70;
    private static final int QUEUES = 2;
    private static final int MESSAGES = 200;
    private static final int RETRIES = 2;
    private static final int[] QUICK_RETRIES = {1, 2};

    private PopCases() {
    }

    /** Three members take messages of two queues; one message fails twice, and one always. */
    static void share(Scene scene) throws Exception {
        String topic = scene.named("topic");
        String group = scene.named("group");
        Versions.createTopic(scene.producer(), topic, QUEUES);
        scene.queues(topic);
        Versions.popGroup(scene.admin(), scene.options.text("namesrv"), topic, group, RETRIES);
        Received received = new Received();
        for (String name : List.of("first", "second", "third")) {
            member(scene, group, topic, name, received);
        }
        for (int i = 0; i < MESSAGES - 2; i++) {
            scene.producer().send(Scene.message(topic, "tag", "key" + i, "body of key" + i));
        }
        for (String key : List.of("twice", "dead")) {
            scene.producer().send(Scene.message(topic, "tag", key, "body of " + key));
        }
        received.awaitExactly(MESSAGES + 2 * RETRIES, Scene.PATIENCE);
        Check.equal("different messages", MESSAGES, received.by(Received.Delivery::body).size());
        received.by(delivery -> delivery.message().getKeys()).forEach((key, list) -> {
            List<Integer> wanted = key.matches("twice|dead") ? List.of(0, 1, 2) : List.of(0);
            Check.equal("tries of " + key, wanted, list.stream().map(Received.Delivery::reconsumeTimes).toList());
            for (Received.Delivery delivery : list) {
                Check.equal("topic", topic, delivery.message().getTopic());
                Check.equal("body", "body of " + key, delivery.body());
            }
        });
        received.by(Received.Delivery::member).forEach((member, list) -> scene.figures.put(member, list.size()));
        Set<String> members = new TreeSet<>(received.by(Received.Delivery::member).keySet());
        Check.equal("members that got messages", Set.of("first", "second", "third"), members);
        MessageExt dead = scene.deadLetters(group, 1).all().get(0).message();
        Check.equal("the dead letter", "dead", dead.getKeys());
        Check.equal("its topic before", topic, dead.getProperty("RETRY_TOPIC"));
    }

    /**
     * Two members that leave rebalance to the broker: their group pulls, then pops, then pulls again. One message fails
     * once. Those that a member has in hand at a change may come twice.
     */
    static void follow(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        Received received = new Received();
        for (String name : List.of("first", "second")) {
            DefaultMQPushConsumer consumer = scene.consumer(group);
            consumer.setInstanceName(scene.named(name));
            Versions.letBrokerRebalance(consumer);
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                MessageExt message = messages.get(0);
                received.add(name, message);
                context.setDelayLevelWhenNextConsume(1);
                boolean fails = message.getKeys().equals("key0") && message.getReconsumeTimes() == 0;
                return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
            consumer.start();
        }
        send(scene, topic, 0, 40);
        received.awaitDifferent(40, Scene.PATIENCE);
        received.await(41, FIRST_RETRY_SECONDS);
        int before = received.count();
        Check.that(received.by(delivery -> delivery.message().getKeys()).get("key0").stream()
            .anyMatch(delivery -> delivery.reconsumeTimes() == 1), "key0 did not come again");
        received.by(Received.Delivery::member).forEach((member, list) -> scene.figures.put(member, list.size()));
        String broker = scene.options.text("namesrv");
        for (String mode : List.of("POP", "PULL")) {
            double begin = Received.now();
            Versions.setMode(scene.admin(), broker, topic, group, mode);
            int sent = received.by(Received.Delivery::body).size();
            send(scene, topic, sent, sent + 20);
            received.awaitDifferent(sent + 20, Scene.PATIENCE);
            scene.figures.put("seconds_" + mode, Received.now() - begin);
        }
        scene.figures.put("doubled", received.count() - before - 40);
    }

    private static void send(Scene scene, String topic, int from, int to) throws Exception {
        for (int i = from; i < to; i++) {
            scene.producer().send(Scene.message(topic, "tag", "key" + i, "body of key" + i));
        }
    }

    private static void member(Scene scene, String group, String topic, String name, Received to) throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer(group);
        consumer.setInstanceName(scene.named(name));
        Versions.letBrokerRebalance(consumer);
        int[] delays = Versions.popDelaySeconds(consumer);
        Arrays.fill(delays, QUICK_RETRIES[1]);
        delays[0] = QUICK_RETRIES[0];
        Versions.setPopBatch(consumer, 8);
        consumer.setConsumeThreadMin(4);
        consumer.setConsumeThreadMax(4);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            to.add(name, message);
            boolean fails = message.getKeys().equals("dead")
                || message.getKeys().equals("twice") && message.getReconsumeTimes() < RETRIES;
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
    }
}
