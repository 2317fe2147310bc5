import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** The client program of RocketMQ 5's SDK, which speaks gRPC. It sends each message by a call of its own. */
public final class RocketMQ5Client extends PeersClient {
    private static final ClientServiceProvider SDK = ClientServiceProvider.loadService();
    private static final int CONSUMPTION_THREADS = 16;
    /** A call of gRPC runs through so much code that it is compiled late, in the client and in RocketMQ's proxy. */
    private static final double WARM_UP_SECONDS = 12;
    private static final int WARM_UP_THREADS = 16;
    /** A push consumer asks for its queues a second after its start, and then receives. */
    private static final long FIRST_RECEIVE_MS = 3_000;
    /** RocketMQ's proxy answers no earlier than this when there is no message. */
    private static final Duration SHORTEST_POLL = Duration.ofSeconds(5);
    private static final Duration INVISIBLE = Duration.ofSeconds(10);
    private static final long ACKNOWLEDGING_MS = 500;

    private RocketMQ5Client(String[] arguments) {
        super(arguments);
    }

    public static void main(String[] arguments) {
        new RocketMQ5Client(arguments).run();
    }

    private static ClientConfiguration configuration() {
        return ClientConfiguration.newBuilder()
            .setEndpoints(System.getenv("PEERS_ENDPOINT"))
            .setRequestTimeout(Duration.ofSeconds(30))
            .enableSsl(false)
            .build();
    }

    private Message message() {
        return SDK.newMessageBuilder().setTopic(topic()).setTag("a").addProperty("k", "v").setBody(body()).build();
    }

    private Map<String, FilterExpression> subscriptions() {
        Map<String, FilterExpression> topics = new HashMap<>();
        topics.put(topic(), FilterExpression.SUB_ALL);
        if (measuresLatency()) {
            topics.put(WARM_UP_TOPIC, FilterExpression.SUB_ALL);
        }
        return topics;
    }

    /** Begin a group in a topic. A group begins with the messages that come after its first receive. */
    @Override
    void prepare(String role) throws Exception {
        if (!role.equals("join")) {
            throw new IllegalArgumentException(role);
        }
        SimpleConsumer consumer = SDK.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(option("group", "g"))
            .setSubscriptionExpressions(subscriptions())
            .setAwaitDuration(SHORTEST_POLL)
            .build();
        ready();
        int received = consumer.receive(1, INVISIBLE).size();
        consumer.close();
        report(received, 0, "");
    }

    @Override
    Send sender() throws Exception {
        if (batch() != 1) {
            throw new IllegalArgumentException("the SDK has no batches");
        }
        Producer producer = SDK.newProducerBuilder()
            .setClientConfiguration(configuration())
            .setTopics(topic(), WARM_UP_TOPIC)
            .build();
        Send single = () -> {
            producer.send(message());
            return 1;
        };
        Send asynchronous = () -> {
            underWay.acquire();
            producer.sendAsync(message()).whenComplete((receipt, failure) -> {
                if (failure != null) {
                    fail(failure);
                }
                underWay.release();
            });
            return 1;
        };
        return underWay != null ? asynchronous : single;
    }

    @Override
    double warmUpSeconds() {
        return WARM_UP_SECONDS;
    }

    @Override
    int warmUpThreads(int threads) {
        return Math.max(threads, WARM_UP_THREADS);
    }

    @Override
    void consume() throws Exception {
        String topic = topic();
        if (!measuresLatency()) {
            ready();
        }
        PushConsumer consumer = SDK.newPushConsumerBuilder()
            .setClientConfiguration(configuration())
            .setConsumerGroup(option("group", "g"))
            .setSubscriptionExpressions(subscriptions())
            .setConsumptionThreadCount(CONSUMPTION_THREADS)
            .setMessageListener(message -> {
                if (message.getTopic().equals(topic)) {
                    arrived(1);
                    if (measuresLatency()) {
                        timed(List.of(bytes(message.getBody())));
                    }
                }
                return ConsumeResult.SUCCESS;
            })
            .build();
        if (measuresLatency()) {
            Thread.sleep(FIRST_RECEIVE_MS);
            ready();
        }
        reportArrivals();
        // The last acknowledgements are on their way. `close` would wait for a poll of 20 s.
        Thread.sleep(ACKNOWLEDGING_MS);
    }

    private static byte[] bytes(ByteBuffer body) {
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return bytes;
    }
}
