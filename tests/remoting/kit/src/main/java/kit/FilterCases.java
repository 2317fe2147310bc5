package kit;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.message.Message;

/** Subscriptions to a part of a topic, by tags and by SQL92. */
final class FilterCases {
    private FilterCases() {
    }

    /** "Aa" and "BB" have one hash code, by which servers filter: the client has to look at the tag itself. */
    static void tags(Scene scene) throws Exception {
        String topic = scene.topic();
        Map<String, String> expressions = new TreeMap<>(Map.of("all", "*", "two", "TagA || TagB", "one", "Aa", "none", "TagX"));
        Map<String, List<String>> wanted = Map.of(
            "all", List.of("Aa", "BB", "TagA", "TagB", "TagC", "none"),
            "two", List.of("TagA", "TagB"),
            "one", List.of("Aa"),
            "none", List.of());
        Map<String, Received> received = new TreeMap<>();
        for (String part : expressions.keySet()) {
            received.put(part, scene.listen(scene.named(part), topic, expressions.get(part)));
        }
        for (int round = 0; round < 3; round++) {
            for (String tag : List.of("Aa", "BB", "TagA", "TagB", "TagC")) {
                scene.producer().send(Scene.message(topic, tag, "key", tag));
            }
            scene.producer().send(new Message(topic, "none".getBytes()));
        }
        received.get("all").await(18, Scene.PATIENCE);
        for (String part : expressions.keySet()) {
            received.get(part).awaitExactly(3 * wanted.get(part).size(), Scene.PATIENCE);
            Check.equal("tags that " + part + " got", wanted.get(part), received.get(part).sortedBodies().stream().distinct().toList());
        }
    }

    static void sql(Scene scene) throws Exception {
        String topic = scene.topic();
        Map<String, List<String>> wanted = new TreeMap<>(Map.of(
            "number > 6 AND colour = 'red'", List.of("8"),
            "number BETWEEN 2 AND 4", List.of("2", "3", "4"),
            "TAGS IS NOT NULL AND TAGS IN ('tag0') AND colour <> 'red'", List.of("2", "6"),
            "colour IS NULL", List.of("none"),
            "part < 0.3", List.of("0", "1", "2")));
        Map<String, Received> received = new TreeMap<>();
        int groups = 0;
        for (String expression : wanted.keySet()) {
            DefaultMQPushConsumer consumer = scene.consumer(scene.named("group" + groups++));
            consumer.subscribe(topic, MessageSelector.bySql(expression));
            Received got = new Received();
            Scene.take(consumer, got::add);
            consumer.start();
            received.put(expression, got);
        }
        Received all = scene.listen(scene.named("all"), topic, "*");
        for (int i = 0; i < 10; i++) {
            Message message = Scene.message(topic, "tag" + i % 2, "key", String.valueOf(i));
            message.putUserProperty("number", String.valueOf(i));
            message.putUserProperty("colour", i % 4 == 0 ? "red" : "blue");
            message.putUserProperty("part", String.valueOf(i / 10.0));
            scene.producer().send(message);
        }
        scene.producer().send(Scene.message(topic, "tag1", "key", "none"));
        all.awaitExactly(11, Scene.PATIENCE);
        for (String expression : wanted.keySet()) {
            received.get(expression).awaitExactly(wanted.get(expression).size(), Scene.PATIENCE);
            Check.equal(expression, wanted.get(expression), received.get(expression).sortedBodies());
        }
    }

    /** A bad expression is told when the consumer starts. */
    static void badSql(Scene scene) throws Exception {
        String topic = scene.topic();
        for (String expression : List.of("number >", "number > 'text' AND (", "a BETWEEN 5 AND 1 OR AND")) {
            DefaultMQPushConsumer consumer = scene.consumer(scene.named("group" + expression.length()));
            consumer.subscribe(topic, MessageSelector.bySql(expression));
            Scene.take(consumer, message -> { });
            MQClientException error = Check.thrown("start() with " + expression, MQClientException.class, consumer::start);
            scene.figures.put(expression, String.valueOf(error.getMessage()));
        }
    }
}
