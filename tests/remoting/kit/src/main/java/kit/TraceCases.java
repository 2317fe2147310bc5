package kit;

import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;

/** The client's own message trace: it sends records of what it did to a topic of the system. */
final class TraceCases {
    private static final String TRACE_TOPIC = "RMQ_SYS_TRACE_TOPIC";
    private static final String FIELD = "\u0001";
    private static final String RECORD = "\u0002";

    private TraceCases() {
    }

    static void records(Scene scene) throws Exception {
        String topic = scene.topic();
        DefaultMQProducer producer = scene.tracingProducer("tracing");
        producer.start();
        DefaultMQPushConsumer consumer = scene.tracingConsumer(scene.named("group"));
        consumer.subscribe(topic, "*");
        Received received = new Received();
        Scene.take(consumer, received::add);
        consumer.start();
        SendResult result = producer.send(Scene.message(topic, "tag", "key", "body"));
        received.awaitExactly(1, Scene.PATIENCE);
        String id = result.getMsgId();
        // Made by the first trace, if not before.
        scene.queues(TRACE_TOPIC);
        Received traces = scene.listen(scene.named("tracers"), TRACE_TOPIC, "*");
        Map<String, List<String>> kinds = new TreeMap<>();
        double deadline = Received.now() + Scene.PATIENCE;
        while (kinds.size() < 3 && Received.now() < deadline) {
            for (Received.Delivery delivery : traces.all()) {
                if (String.valueOf(delivery.message().getKeys()).contains(id)) {
                    for (String record : delivery.body().split(RECORD)) {
                        kinds.put(record.split(FIELD)[0], List.of(record.split(FIELD)));
                    }
                }
            }
            Thread.sleep(100);
        }
        Check.equal("kinds of records", List.of("Pub", "SubAfter", "SubBefore"), List.copyOf(kinds.keySet()));
        Check.equal("topic in the record", topic, kinds.get("Pub").get(4));
        Check.equal("id in the record", id, kinds.get("Pub").get(5));
        Check.equal("id in the consumer's record", id, kinds.get("SubBefore").get(5));
    }
}
