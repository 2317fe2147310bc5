package kit;

import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/** Messages for later: by level, and since 5.0 by time. */
final class DelayCases {
    /** RocketMQ may deliver up to a second early: its wheel turns by seconds. */
    private static final double EARLY = 1.1;
    private static final double LATE = 15;

    private DelayCases() {
    }

    static void level(Scene scene) throws Exception {
        String topic = scene.topic();
        Received received = scene.listening(topic);
        Map<String, Double> wanted = new HashMap<>(Map.of("now", 0.0, "level1", 1.0, "level2", 5.0));
        Map<String, Double> sent = new HashMap<>();
        for (String key : List.of("level2", "level1", "now")) {
            Message message = Scene.message(topic, "tag", key, "body of " + key);
            if (key.startsWith("level")) {
                message.setDelayTimeLevel(Integer.parseInt(key.substring(5)));
            }
            sent.put(key, Received.now());
            scene.producer().send(message);
        }
        check(scene, received, topic, wanted, sent, 0.05);
    }

    static void time(Scene scene) throws Exception {
        String topic = scene.topic();
        Received received = scene.listening(topic);
        Map<String, Double> wanted = new HashMap<>(Map.of("ms", 2.5, "sec", 3.0, "at", 4.0, "past", 0.0));
        Map<String, Double> sent = new HashMap<>();
        for (String key : wanted.keySet()) {
            Message message = Scene.message(topic, "tag", key, "body of " + key);
            switch (key) {
                case "ms" -> Versions.setTime(message, "setDelayTimeMs", 2_500);
                case "sec" -> Versions.setTime(message, "setDelayTimeSec", 3);
                case "at" -> Versions.setTime(message, "setDeliverTimeMs", System.currentTimeMillis() + 4_000);
                default -> Versions.setTime(message, "setDeliverTimeMs", System.currentTimeMillis() - 1_000);
            }
            sent.put(key, Received.now());
            scene.producer().send(message);
        }
        check(scene, received, topic, wanted, sent, EARLY);
    }

    private static void check(Scene scene, Received received, String topic, Map<String, Double> wanted,
            Map<String, Double> sent, double early) throws Exception {
        for (Received.Delivery delivery : received.awaitExactly(wanted.size(), Scene.PATIENCE)) {
            String key = delivery.message().getKeys();
            double waited = delivery.at() - sent.get(key);
            scene.figures.put(key + "_seconds", waited);
            Check.within("seconds until " + key, wanted.get(key) - early, wanted.get(key) + LATE, waited);
            Check.equal("body", "body of " + key, delivery.body());
            Check.equal("topic", topic, delivery.message().getTopic());
            Check.equal("tags", "tag", delivery.message().getTags());
            Check.equal("reconsumeTimes", 0, delivery.message().getReconsumeTimes());
        }
        Check.equal("doubled", 0, received.doubled());
    }

    /** A recalled message never comes; one that was sent with it and is due later does. */
    static void recall(Scene scene) throws Exception {
        String topic = scene.topic();
        Received received = scene.listening(topic);
        SendResult recalled = scene.producer().send(delayed(topic, "recalled", 4_000));
        SendResult kept = scene.producer().send(delayed(topic, "kept", 5_000));
        String handle = Versions.recallHandle(recalled);
        Check.that(handle != null && !handle.isEmpty(), "the send gave no handle for a recall");
        Check.equal("id that the recall gave", recalled.getMsgId(), Versions.recall(scene.producer(), topic, handle));
        Exception refused = Check.thrown("a recall by rubbish", Exception.class, () -> Versions.recall(scene.producer(), topic, "rubbish"));
        scene.figures.put("rubbish", String.valueOf(refused.getMessage()));
        Check.equal("messages", List.of("kept"), received.awaitExactly(1, Scene.PATIENCE).stream().map(Received.Delivery::body).toList());
        Check.equal("id", kept.getMsgId(), received.all().get(0).message().getMsgId());
    }

    private static Message delayed(String topic, String body, long ms) throws Exception {
        Message message = Scene.message(topic, "tag", body, body);
        Versions.setTime(message, "setDelayTimeMs", ms);
        return message;
    }
}
