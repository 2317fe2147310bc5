package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends, and what a consumer sees of them. */
final class SendCases {
    private static final int MANY = 40;

    private SendCases() {
    }

    /** To a topic that the first send makes. */
    static void sync(Scene scene) throws Exception {
        String topic = scene.named("topic");
        DefaultMQProducer producer = scene.producer();
        Map<String, SendResult> results = new HashMap<>();
        long begin = System.currentTimeMillis();
        for (int i = 0; i < MANY; i++) {
            String body = "body " + i + " \u00e4\u4f60\ud83d\ude00\u0000";
            Message message = Scene.message(topic, "tag" + i % 2, "key" + i + " other" + i, body);
            message.putUserProperty("number", String.valueOf(i));
            message.putUserProperty("text", "\u00fc = \"x\" & y");
            message.setFlag(i);
            SendResult result = producer.send(message);
            Check.equal("status of the send", SendStatus.SEND_OK, result.getSendStatus());
            Check.that(result.getOffsetMsgId().matches("[0-9A-F]{32}"), "offset id %s", result.getOffsetMsgId());
            results.put(body, result);
        }
        Check.equal("queues of the new topic", Scene.QUEUES, scene.queues(topic).size());
        Received received = scene.listen(topic, "*");
        for (Received.Delivery delivery : received.awaitExactly(MANY, Scene.PATIENCE)) {
            SendResult result = results.remove(delivery.body());
            Check.that(result != null, "body %s was not sent, or came twice", delivery.body());
            int number = Integer.parseInt(delivery.message().getUserProperty("number"));
            checkSent(result, topic, number, delivery.message());
            Check.within("born time", begin, System.currentTimeMillis(), delivery.message().getBornTimestamp());
        }
        received.by(delivery -> String.valueOf(delivery.message().getQueueId())).forEach((queue, list) -> Check.equal(
            "offsets of queue " + queue,
            IntStream.range(0, list.size()).mapToObj(Long::valueOf).toList(),
            list.stream().map(delivery -> delivery.message().getQueueOffset()).sorted().toList()));
    }

    private static void checkSent(SendResult result, String topic, int number, MessageExt message) {
        Check.equal("topic", topic, message.getTopic());
        Check.equal("tags", "tag" + number % 2, message.getTags());
        Check.equal("keys", "key" + number + " other" + number, message.getKeys());
        Check.equal("user property", "\u00fc = \"x\" & y", message.getUserProperty("text"));
        Check.equal("flag", number, message.getFlag());
        Check.equal("reconsumeTimes", 0, message.getReconsumeTimes());
        Check.equal("id", result.getMsgId(), message.getMsgId());
        Check.equal("offset id", result.getOffsetMsgId(), ((MessageClientExt) message).getOffsetMsgId());
        Check.equal("queue", result.getMessageQueue().getQueueId(), message.getQueueId());
        Check.that(message.getBornHostString() != null, "no host of birth");
    }

    static void async(Scene scene) throws Exception {
        String topic = scene.topic();
        CountDownLatch done = new CountDownLatch(MANY);
        Map<String, Throwable> errors = new ConcurrentHashMap<>();
        for (int i = 0; i < MANY; i++) {
            String body = "body " + i;
            scene.producer().send(Scene.message(topic, "tag", "key" + i, body), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    done.countDown();
                }

                @Override
                public void onException(Throwable error) {
                    errors.put(body, error);
                    done.countDown();
                }
            });
        }
        Check.that(done.await(30, TimeUnit.SECONDS), "%d callbacks did not come", done.getCount());
        Check.equal("errors", Map.of(), errors);
        Received received = scene.listen(topic, "*");
        received.awaitExactly(MANY, Scene.PATIENCE);
        Check.equal("bodies", bodies(MANY), received.sortedBodies());
    }

    static void oneway(Scene scene) throws Exception {
        String topic = scene.topic();
        for (int i = 0; i < MANY; i++) {
            scene.producer().sendOneway(Scene.message(topic, "tag", "key" + i, "body " + i));
        }
        Received received = scene.listen(topic, "*");
        received.awaitExactly(MANY, Scene.PATIENCE);
        Check.equal("bodies", bodies(MANY), received.sortedBodies());
    }

    private static List<String> bodies(int count) {
        return IntStream.range(0, count).mapToObj(i -> "body " + i).sorted().toList();
    }

    /** Above 4 KiB the client compresses, and the one that consumes makes it whole again. */
    static void compression(Scene scene) throws Exception {
        String topic = scene.topic();
        byte[] random = new byte[8_000];
        new Random(1).nextBytes(random);
        Map<String, byte[]> sent = new HashMap<>();
        sent.put("small", "x".repeat(4_095).getBytes(UTF_8));
        sent.put("repeated", "compressible ".repeat(20_000).getBytes(UTF_8));
        sent.put("random", random);
        for (Map.Entry<String, byte[]> one : sent.entrySet()) {
            scene.producer().send(new Message(topic, "ZLIB", one.getKey(), one.getValue()));
        }
        List<String> types = Versions.hasCompressionTypes() ? List.of("LZ4", "ZSTD") : List.of();
        for (String type : types) {
            DefaultMQProducer producer = scene.producer(type);
            Versions.setCompression(producer, type);
            producer.start();
            sent.put(type, (type + " is another way ").repeat(5_000).getBytes(UTF_8));
            producer.send(new Message(topic, type, type, sent.get(type)));
        }
        Received received = scene.listen(topic, "*");
        for (Received.Delivery delivery : received.awaitExactly(sent.size(), Scene.PATIENCE)) {
            MessageExt message = delivery.message();
            Check.that(Arrays.equals(sent.get(message.getKeys()), message.getBody()), "body of %s differs", message.getKeys());
            boolean isSmaller = message.getStoreSize() < message.getBody().length / 2;
            Check.equal("is stored compressed, " + message.getKeys(), !message.getKeys().matches("small|random"), isSmaller);
        }
    }

    static void batch(Scene scene) throws Exception {
        String topic = scene.topic();
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 10; i++) {
            Message message = Scene.message(topic, "tag" + i, "key" + i, "body " + i);
            message.putUserProperty("number", String.valueOf(i));
            message.setFlag(i);
            messages.add(message);
        }
        SendResult result = scene.producer().send(messages);
        Check.equal("status of the send", SendStatus.SEND_OK, result.getSendStatus());
        List<String> offsetIds = List.of(result.getOffsetMsgId().split(","));
        List<String> ids = List.of(result.getMsgId().split(","));
        Check.equal("ids", 10, ids.size());
        Check.equal("offset ids", 10, offsetIds.size());
        Received received = scene.listen(topic, "*");
        // RocketMQ's broker adds the properties of the batch to each message, and with them an id that is of no message.
        boolean haveOwnIds = received.awaitExactly(10, Scene.PATIENCE).get(0).message().getMsgId().equals(ids.get(0));
        scene.figures.put("have_own_ids", haveOwnIds);
        for (Received.Delivery delivery : received.all()) {
            MessageExt message = delivery.message();
            int number = Integer.parseInt(message.getUserProperty("number"));
            Check.equal("body", "body " + number, delivery.body());
            Check.equal("tags", "tag" + number, message.getTags());
            Check.equal("keys", "key" + number, message.getKeys());
            Check.equal("flag", number, message.getFlag());
            Check.equal("queue", result.getMessageQueue().getQueueId(), message.getQueueId());
            Check.equal("place in the batch", (long) number, message.getQueueOffset());
            Check.that(!haveOwnIds || ids.get(number).equals(message.getMsgId()), "id of %d is %s", number, message.getMsgId());
            Check.equal("offset id", offsetIds.get(number), ((MessageClientExt) message).getOffsetMsgId());
        }
    }
}
