package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.Map;
import java.util.Random;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Refusals by the server, as a program sees them, and requests that no client of today sends. */
final class ErrorCases {
    private static final int SEND = 10;
    private static final int MESSAGE_ILLEGAL = 13;
    private static final int NO_PERMISSION = 16;
    private static final int UNKNOWN_CODE = 3;

    private ErrorCases() {
    }

    static void refused(Scene scene) throws Exception {
        String topic = scene.topic();
        DefaultMQProducer producer = scene.producer();
        producer.setMaxMessageSize(16 * 1024 * 1024);
        byte[] large = new byte[4 * 1024 * 1024 + 1];
        new Random(1).nextBytes(large);
        Message tooLarge = new Message(topic, large);
        refused(scene, "body too large", MESSAGE_ILLEGAL, () -> producer.send(tooLarge, 20_000));
        Message tooWide = Scene.message(topic, "tag", "key", "body");
        tooWide.putUserProperty("wide", "x".repeat(33_000));
        refused(scene, "properties too long", MESSAGE_ILLEGAL, () -> producer.send(tooWide));
        Check.thrown("a send to a system topic", MQClientException.class,
            () -> producer.send(Scene.message("SCHEDULE_TOPIC_XXXX", "tag", "key", "body")));
        RemotingCommand answer = call(scene, topic, sendRequest("SCHEDULE_TOPIC_XXXX", "never"));
        Check.equal("code of a send to a system topic past the client", NO_PERMISSION, answer.getCode());
        scene.figures.put("system topic", answer.getRemark());
        // What was refused costs the connection nothing.
        producer.send(Scene.message(topic, "tag", "key", "body after errors"));
        Received received = scene.listen(topic, "*");
        received.awaitExactly(1, Scene.PATIENCE);
    }

    private static void refused(Scene scene, String what, int code, Check.Action send) {
        MQBrokerException error = Check.thrown(what, MQBrokerException.class, send);
        Check.equal("code of " + what, code, error.getResponseCode());
        scene.figures.put(what, error.getErrorMessage());
    }

    /** The send of clients before 3.2.6 by the long names, and a code that is none. */
    static void oldAndUnknown(Scene scene) throws Exception {
        String topic = scene.topic();
        RemotingCommand sent = call(scene, topic, sendRequest(topic, "old"));
        Check.that(sent.getCode() == 0, "the answer to an old send is %d, %s", sent.getCode(), sent.getRemark());
        Check.equal("queue of an old send", "1", sent.getExtFields().get("queueId"));
        Received received = scene.listen(topic, "*");
        Received.Delivery delivery = received.awaitExactly(1, Scene.PATIENCE).get(0);
        Check.equal("body", "old", delivery.body());
        Check.equal("tags", "tag", delivery.message().getTags());
        Check.equal("queue", 1, delivery.message().getQueueId());
        Check.equal("flag", 7, delivery.message().getFlag());
        RemotingCommand unknown = call(scene, topic, RemotingCommand.createRequestCommand(9_876, null));
        Check.equal("code of the answer to an unknown code", UNKNOWN_CODE, unknown.getCode());
    }

    private static RemotingCommand sendRequest(String topic, String body) {
        RemotingCommand request = RemotingCommand.createRequestCommand(SEND, null);
        Map<String, String> fields = Map.of(
            "producerGroup", "kit-old", "topic", topic, "defaultTopic", "TBW102", "defaultTopicQueueNums", "4",
            "queueId", "1", "sysFlag", "0", "bornTimestamp", String.valueOf(System.currentTimeMillis()),
            "flag", "7", "properties", "TAGS\u0001tag\u0002KEYS\u0001key\u0002", "reconsumeTimes", "0");
        fields.forEach(request::addExtField);
        request.setBody(body.getBytes(UTF_8));
        return request;
    }

    /** The answer of the broker that has the topic. */
    private static RemotingCommand call(Scene scene, String topic, RemotingCommand request) throws Exception {
        MessageQueue queue = scene.queues(topic).get(0);
        MQClientInstance instance = scene.producer().getDefaultMQProducerImpl().getMqClientFactory();
        instance.updateTopicRouteInfoFromNameServer(topic);
        String address = instance.findBrokerAddressInPublish(queue.getBrokerName());
        return instance.getMQClientAPIImpl().getRemotingClient().invokeSync(address, request, 5_000);
    }
}
