package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayDeque;
import java.util.Deque;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentSkipListMap;
import java.util.function.Consumer;
import org.apache.rocketmq.client.ClientConfig;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.rebalance.AllocateMessageQueueAveragely;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** What one case works with: topics and groups of its own, and clients, which are shut down when it ends. */
final class Scene implements AutoCloseable {
    static final int QUEUES = 4;
    /**
     * Seconds that a message may take which nothing delays. RocketMQ's broker refuses the pulls of a new consumer until
     * its second heartbeat, after 30 s, if it missed the one that tells of its queues.
     */
    static final double PATIENCE = 50;

    /** A machine that is busy with other tests may take longer than the client's 3 s. */
    private static final int SEND_TIMEOUT_MS = 20_000;
    private static final String RETRY_PREFIX = "%RETRY%";

    final Options options;
    /** Numbers that a reader of the result may want. */
    final Map<String, Object> figures = new ConcurrentSkipListMap<>();
    private final String name;
    private final RPCHook hook;
    private final Deque<Runnable> clients = new ArrayDeque<>();
    private DefaultMQProducer producer;

    Scene(String name, Options options) {
        this(name, options, options.has("access-key")
            ? Versions.signing(options.text("access-key"), options.text("secret-key"))
            : null);
    }

    private Scene(String name, Options options, RPCHook hook) {
        this.name = name;
        this.options = options;
        this.hook = hook;
    }

    /** A scene with the same names whose clients have another access key, {@code key:secret}. It ends with this one. */
    Scene of(String key) {
        String[] parts = key.split(":", 2);
        Scene made = new Scene(name, options, Versions.signing(parts[0], parts[1]));
        adopt(made::close);
        return made;
    }

    /** The name of a group or topic of this run. Nothing makes it. */
    String named(String part) {
        return String.join("-", "kit", name, part, options.text("suffix", "none"));
    }

    /** A new topic with four queues. */
    String topic() throws Exception {
        return topic("topic");
    }

    String topic(String part) throws Exception {
        String topic = named(part);
        Versions.createTopic(producer(), topic, QUEUES);
        queues(topic);
        return topic;
    }

    /** The queues of the topic, in their order, when the name server knows the topic. */
    List<MessageQueue> queues(String topic) throws Exception {
        double deadline = Received.now() + PATIENCE;
        while (true) {
            try {
                return List.copyOf(new TreeSet<>(producer().fetchPublishMessageQueues(topic)));
            } catch (MQClientException unknown) {
                if (Received.now() > deadline) {
                    throw unknown;
                }
                Thread.sleep(100);
            }
        }
    }

    static Message message(String topic, String tag, String key, String body) {
        return new Message(topic, tag, key, body.getBytes(UTF_8));
    }

    /** The case's own producer, started. */
    DefaultMQProducer producer() throws MQClientException {
        if (producer == null) {
            producer = producer("producers");
            producer.start();
        }
        return producer;
    }

    /** Another producer, not started. */
    DefaultMQProducer producer(String group) {
        return adopt(new DefaultMQProducer(named(group), hook));
    }

    DefaultMQProducer tracingProducer(String group) {
        return adopt(new DefaultMQProducer(named(group), hook, true, null));
    }

    TransactionMQProducer transactionProducer(String group) {
        TransactionMQProducer made = new TransactionMQProducer(named(group), hook);
        adopt((DefaultMQProducer) made);
        return made;
    }

    private DefaultMQProducer adopt(DefaultMQProducer made) {
        made.setSendMsgTimeout(SEND_TIMEOUT_MS);
        return adopt(made, made::shutdown);
    }

    /** A consumer from the first offset on, not started. The group is a full name. */
    DefaultMQPushConsumer consumer(String group) {
        return adopt(new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely()));
    }

    DefaultMQPushConsumer tracingConsumer(String group) {
        return adopt(new DefaultMQPushConsumer(group, hook, new AllocateMessageQueueAveragely(), true, null));
    }

    private DefaultMQPushConsumer adopt(DefaultMQPushConsumer made) {
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return adopt(made, made::shutdown);
    }

    /** Not started. The group is a full name. */
    DefaultLitePullConsumer litePull(String group) {
        DefaultLitePullConsumer made = new DefaultLitePullConsumer(group, hook);
        made.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        return adopt(made, made::shutdown);
    }

    /** RocketMQ's tools, started. */
    DefaultMQAdminExt admin() throws MQClientException {
        DefaultMQAdminExt made = new DefaultMQAdminExt(hook);
        adopt(made, made::shutdown).start();
        return made;
    }

    private <C extends ClientConfig> C adopt(C made, Runnable shutdown) {
        made.setNamesrvAddr(options.text("namesrv"));
        made.setUseTLS(options.has("tls"));
        adopt(shutdown);
        return made;
    }

    private void adopt(Runnable shutdown) {
        synchronized (clients) {
            clients.push(shutdown);
        }
    }

    /** Starts a consumer of a new group which takes all that comes. */
    Received listen(String topic, String expression) throws MQClientException {
        return listen(named("group"), topic, expression);
    }

    Received listen(String group, String topic, String expression) throws MQClientException {
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer(group);
        consumer.subscribe(topic, expression);
        take(consumer, received::add);
        consumer.start();
        return received;
    }

    /** As listen() to all of the topic, but returns when messages come. The one that showed it is not among the received. */
    Received listening(String topic) throws Exception {
        Received received = listen(topic, "*");
        awaitFirst(topic, received);
        return received;
    }

    void awaitFirst(String topic, Received received) throws Exception {
        producer().send(message(topic, "tag", "first", "first"));
        received.await(1, PATIENCE);
        received.clear();
    }

    /** Has the consumer hand over each message, and call it consumed. */
    static void take(DefaultMQPushConsumer consumer, Consumer<MessageExt> to) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(to);
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
    }

    /** The dead letters of the group, when they are so many. */
    Received deadLetters(String group, int count) throws Exception {
        String topic = "%DLQ%" + group;
        queues(topic);
        Received received = listen(named("undertaker"), topic, "*");
        received.awaitExactly(count, PATIENCE);
        return received;
    }

    /** The queues that the consumer holds now, without those of its retry topic. */
    static TreeSet<Integer> held(DefaultMQPushConsumer consumer) {
        TreeSet<Integer> held = new TreeSet<>();
        for (MessageQueue queue : consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            if (!queue.getTopic().startsWith(RETRY_PREFIX)) {
                held.add(queue.getQueueId());
            }
        }
        return held;
    }

    @Override
    public void close() {
        synchronized (clients) {
            while (!clients.isEmpty()) {
                clients.pop().run();
            }
        }
    }
}
