package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.RequestTimeoutException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.RequestCallback;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;

/** Requests with replies. */
final class RequestCases {
    private static final long TIMEOUT_MS = 15_000;

    private RequestCases() {
    }

    static void reply(Scene scene) throws Exception {
        String topic = scene.topic();
        answer(scene, topic);
        DefaultMQProducer asker = scene.producer("askers");
        asker.start();
        int count = 6;
        CountDownLatch done = new CountDownLatch(count);
        Map<String, String> replies = new ConcurrentHashMap<>();
        // The first before the first heartbeat of the producer.
        for (int i = 0; i < count; i++) {
            String body = "question " + i;
            asker.request(Scene.message(topic, "tag", "key" + i, body), callback(body, replies, done), TIMEOUT_MS);
        }
        Check.that(done.await(2 * TIMEOUT_MS, TimeUnit.MILLISECONDS), "%d requests have no end; replies: %s", done.getCount(), replies);
        for (int i = 0; i < count; i++) {
            Check.equal("reply", "answer to question " + i, replies.get("question " + i));
        }
        String kind = "callbacks";
        if (Versions.hasBlockingRequest()) {
            kind += " and blocking";
            Message answered = asker.request(Scene.message(topic, "tag", "key", "question 7"), TIMEOUT_MS);
            Check.equal("reply", "answer to question 7", new String(answered.getBody(), UTF_8));
        }
        scene.figures.put("kind", kind);
    }

    /** Nobody answers. The time is also that of the send, which a busy machine may hold up. */
    static void timeout(Scene scene) throws Exception {
        String topic = scene.topic();
        CountDownLatch done = new CountDownLatch(1);
        Map<String, String> replies = new ConcurrentHashMap<>();
        double begin = Received.now();
        scene.producer().request(Scene.message(topic, "tag", "key", "question"), callback("question", replies, done), 5_000);
        Check.that(done.await(30, TimeUnit.SECONDS), "the request has no end");
        Check.equal("error", RequestTimeoutException.class.getName(), replies.get("question"));
        Check.within("seconds", 4.9, 25, Received.now() - begin);
    }

    private static RequestCallback callback(String question, Map<String, String> replies, CountDownLatch done) {
        return new RequestCallback() {
            @Override
            public void onSuccess(Message message) {
                replies.put(question, new String(message.getBody(), UTF_8));
                done.countDown();
            }

            @Override
            public void onException(Throwable error) {
                replies.put(question, error.getClass().getName());
                done.countDown();
            }
        };
    }

    private static void answer(Scene scene, String topic) throws Exception {
        DefaultMQProducer answering = scene.producer("answering");
        answering.start();
        DefaultMQPushConsumer consumer = scene.consumer(scene.named("group"));
        consumer.subscribe(topic, "*");
        Received first = new Received();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (messages.get(0).getKeys().equals("first")) {
                first.add(messages.get(0));
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            try {
                byte[] body = ("answer to " + new String(messages.get(0).getBody(), UTF_8)).getBytes(UTF_8);
                answering.send(MessageUtil.createReplyMessage(messages.get(0), body), 5_000);
            } catch (Exception error) {
                error.printStackTrace();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        scene.awaitFirst(topic, first);
    }
}
