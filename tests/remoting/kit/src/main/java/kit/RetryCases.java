package kit;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Failed messages: the retries, the dead letters, and broadcasting, which has neither. */
final class RetryCases {
    /** RocketMQ's client may look for its retry topic 20 s after the first failure. */
    private static final double FIRST_RETRY_SECONDS = 70;

    private RetryCases() {
    }

    static void deadLetter(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        for (String key : List.of("always", "once", "dead", "throws", "well")) {
            Message message = Scene.message(topic, "tag", key, "body of " + key);
            message.putUserProperty("own", key);
            scene.producer().send(message);
        }
        Received tried = new Received();
        DefaultMQPushConsumer consumer = scene.consumer(group);
        consumer.setMaxReconsumeTimes(2);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            MessageExt message = messages.get(0);
            tried.add(message);
            boolean isFirst = message.getReconsumeTimes() == 0;
            context.setDelayLevelWhenNextConsume(message.getKeys().equals("dead") ? -1 : 1);
            if (isFirst && message.getKeys().equals("throws")) {
                throw new IllegalStateException("as the case wants it");
            }
            boolean fails = message.getKeys().matches("always|dead") || isFirst && message.getKeys().equals("once");
            return fails ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        tried.await(5, Scene.PATIENCE);
        tried.awaitExactly(9, FIRST_RETRY_SECONDS);
        Map<String, List<Integer>> wanted = new TreeMap<>(Map.of(
            "always", List.of(0, 1, 2), "once", List.of(0, 1), "dead", List.of(0), "throws", List.of(0, 1), "well", List.of(0)));
        tried.by(delivery -> delivery.message().getKeys()).forEach((key, list) -> {
            Check.equal("tries of " + key, wanted.get(key), list.stream().map(Received.Delivery::reconsumeTimes).toList());
            Check.equal("ids of " + key, 1L, list.stream().map(one -> one.message().getMsgId()).distinct().count());
            for (Received.Delivery delivery : list) {
                Check.equal("topic", topic, delivery.message().getTopic());
                Check.equal("body", "body of " + key, delivery.body());
                Check.equal("tags", "tag", delivery.message().getTags());
                Check.equal("user property", key, delivery.message().getUserProperty("own"));
            }
        });
        List<Received.Delivery> always = tried.by(delivery -> delivery.message().getKeys()).get("always");
        double first = always.get(1).at() - always.get(0).at();
        scene.figures.put("first_retry_seconds", first);
        Check.that(first > 0.9, "the first retry came after %.2f s", first);
        Check.within("seconds to the second retry", 0.9, 10, always.get(2).at() - always.get(1).at());
        for (Received.Delivery dead : scene.deadLetters(group, 2).all()) {
            String key = dead.message().getKeys();
            Check.that(key.matches("always|dead"), "%s is among the dead letters", key);
            Check.equal("body of the dead letter", "body of " + key, dead.body());
            Check.equal("its tags", "tag", dead.message().getTags());
            Check.equal("its user property", key, dead.message().getUserProperty("own"));
            Check.equal("its topic before", topic, dead.message().getProperty("RETRY_TOPIC"));
        }
    }

    /** Each member gets everything, a failed message does not come again, and offsets are the client's own. */
    static void broadcasting(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        send(scene, topic, "early", 8);
        Received first = new Received();
        // The default instance name, with which all programs of a machine have one client id.
        DefaultMQPushConsumer leaver = broadcast(scene, group, topic, "DEFAULT", first);
        Received second = new Received();
        broadcast(scene, group, topic, scene.named("second"), second);
        first.await(8, Scene.PATIENCE);
        second.await(8, Scene.PATIENCE);
        send(scene, topic, "late", 8);
        for (Received member : List.of(first, second)) {
            member.awaitExactly(16, Scene.PATIENCE);
            Check.equal("doubled", 0, member.doubled());
        }
        leaver.shutdown();
        Received again = new Received();
        broadcast(scene, group, topic, "DEFAULT", again);
        send(scene, topic, "last", 8);
        again.awaitExactly(8, Scene.PATIENCE);
        Check.that(again.bodies().stream().allMatch(body -> body.startsWith("last")), "came again: %s", again.sortedBodies());
        second.awaitExactly(24, Scene.PATIENCE);
    }

    private static DefaultMQPushConsumer broadcast(Scene scene, String group, String topic, String instance, Received to)
            throws Exception {
        DefaultMQPushConsumer consumer = scene.consumer(group);
        Versions.setBroadcasting(consumer);
        consumer.setInstanceName(instance);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(to::add);
            return messages.get(0).getKeys().endsWith("3")
                ? ConsumeConcurrentlyStatus.RECONSUME_LATER
                : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        return consumer;
    }

    private static void send(Scene scene, String topic, String part, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            scene.producer().send(Scene.message(topic, "tag", part + i, part + " " + i));
        }
    }
}
