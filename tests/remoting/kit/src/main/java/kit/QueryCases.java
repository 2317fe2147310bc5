package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.List;
import java.util.concurrent.Callable;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Stored messages, found by key and by both of their ids, and the offsets of queues. */
final class QueryCases {
    /** Until the index of the server has what was sent just now. */
    private static final double INDEX_SECONDS = 15;

    private QueryCases() {
    }

    static void messages(Scene scene) throws Exception {
        String topic = scene.topic();
        DefaultMQProducer producer = scene.producer();
        long begin = System.currentTimeMillis() - 60_000;
        SendResult last = null;
        for (int i = 0; i < 5; i++) {
            Message message = Scene.message(topic, "tag", "shared own" + i, "body " + i);
            message.putUserProperty("own", "property " + i);
            last = producer.send(message);
        }
        long end = System.currentTimeMillis() + 60_000;
        check(topic, found(1, () -> producer.queryMessage(topic, "own4", 32, begin, end).getMessageList()).get(0), last);
        List<String> shared = found(5, () -> producer.queryMessage(topic, "shared", 32, begin, end).getMessageList())
            .stream().map(one -> new String(one.getBody(), UTF_8)).sorted().toList();
        Check.equal("messages with the shared key", List.of("body 0", "body 1", "body 2", "body 3", "body 4"), shared);
        Check.equal("messages, at most 2", 2, producer.queryMessage(topic, "shared", 2, begin, end).getMessageList().size());
        String id = last.getMsgId();
        check(topic, found(1, () -> List.of(producer.viewMessage(topic, id))).get(0), last);
        check(topic, producer.viewMessage(topic, last.getOffsetMsgId()), last);
        MQClientException none = Check.thrown("a query by an unknown key", MQClientException.class,
            () -> producer.queryMessage(topic, "unknown", 32, begin, end));
        scene.figures.put("unknown_key", none.getMessage());
        Exception wrong = Check.thrown("a view of an unknown id", Exception.class, () -> {
            MessageExt found = producer.viewMessage(topic, "0".repeat(28) + "ABCD");
            if (found == null) {
                throw new MQClientException("null", null);
            }
        });
        scene.figures.put("unknown_id", String.valueOf(wrong.getMessage()));
    }

    private static List<MessageExt> found(int count, Callable<List<MessageExt>> query) throws Exception {
        double deadline = Received.now() + INDEX_SECONDS;
        while (true) {
            try {
                List<MessageExt> messages = query.call();
                if (messages.size() >= count || Received.now() > deadline) {
                    Check.equal("messages that a query found", count, messages.size());
                    return messages;
                }
            } catch (MQClientException none) {
                if (Received.now() > deadline) {
                    throw none;
                }
            }
            Thread.sleep(100);
        }
    }

    private static void check(String topic, MessageExt message, SendResult sent) {
        Check.equal("topic", topic, message.getTopic());
        Check.equal("body", "body 4", new String(message.getBody(), UTF_8));
        Check.equal("keys", "shared own4", message.getKeys());
        Check.equal("user property", "property 4", message.getUserProperty("own"));
        Check.equal("id", sent.getMsgId(), message.getMsgId());
        Check.equal("queue", sent.getMessageQueue().getQueueId(), message.getQueueId());
    }

    static void offsets(Scene scene) throws Exception {
        String topic = scene.topic();
        DefaultMQProducer producer = scene.producer();
        MessageQueue queue = scene.queues(topic).get(2);
        Check.equal("max offset of an empty queue", 0L, producer.maxOffset(queue));
        for (int i = 0; i < 3; i++) {
            producer.send(Scene.message(topic, "tag", "key", "body " + i), queue);
        }
        double deadline = Received.now() + INDEX_SECONDS;
        while (producer.maxOffset(queue) < 3 && Received.now() < deadline) {
            Thread.sleep(50);
        }
        Check.equal("max offset", 3L, producer.maxOffset(queue));
        Check.equal("min offset", 0L, producer.minOffset(queue));
        Check.equal("offset by a time before", 0L, producer.searchOffset(queue, System.currentTimeMillis() - 600_000));
        scene.figures.put("offset_by_a_time_to_come", producer.searchOffset(queue, System.currentTimeMillis() + 600_000));
    }
}
