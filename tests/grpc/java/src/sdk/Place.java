package sdk;

import java.io.Closeable;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.TransactionChecker;

/** The topic of one case, and the clients that the case has started. Its end closes them in the background. */
final class Place implements AutoCloseable {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    /** The name of the topic and of the consumer group. */
    final String topic;

    private final ClientConfiguration configuration;
    private final List<Closeable> clients = Collections.synchronizedList(new ArrayList<>());

    Place(String endpoint, String topic) {
        this(configuration(endpoint), topic);
    }

    private Place(ClientConfiguration configuration, String topic) {
        this.topic = topic;
        this.configuration = configuration;
    }

    private static ClientConfiguration configuration(String endpoint) {
        Map<String, String> environment = System.getenv();
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(endpoint).enableSsl(environment.containsKey("SDK_TLS"));
        if (environment.containsKey("SDK_ACCESS_KEY")) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(
                environment.get("SDK_ACCESS_KEY"), environment.get("SDK_SECRET_KEY")));
        }
        return builder.build();
    }

    /** Another topic of the same server. */
    Place other(String suffix) {
        return new Place(configuration, topic + suffix);
    }

    Producer producer() throws ClientException {
        return kept(producerBuilder().build());
    }

    Producer producer(TransactionChecker checker) throws ClientException {
        return kept(producerBuilder().setTransactionChecker(checker).build());
    }

    private ProducerBuilder producerBuilder() {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic);
    }

    PushConsumer push(MessageListener listener) throws ClientException {
        return push(FilterExpression.SUB_ALL, 8, listener);
    }

    PushConsumer push(FilterExpression filter, int threads, MessageListener listener) throws ClientException {
        return push(topic, filter, threads, listener);
    }

    PushConsumer push(String group, FilterExpression filter, int threads, MessageListener listener)
        throws ClientException {
        return kept(PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(group)
            // The SDK keeps the map, and `subscribe` changes it.
            .setSubscriptionExpressions(new ConcurrentHashMap<>(Map.of(topic, filter)))
            .setConsumptionThreadCount(threads)
            .setMessageListener(listener)
            .build());
    }

    SimpleConsumer simple() throws ClientException {
        return kept(PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(configuration)
            .setConsumerGroup(topic)
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .setAwaitDuration(Duration.ofSeconds(5))
            .build());
    }

    MessageBuilder builder(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    Message message(String body) {
        return builder(body).build();
    }

    private <T extends Closeable> T kept(T client) {
        clients.add(client);
        return client;
    }

    @Override
    public void close() {
        for (Closeable client : clients) {
            Thread closing = new Thread(() -> {
                try {
                    client.close();
                } catch (Exception error) {
                    error.printStackTrace();
                }
            });
            closing.setDaemon(true);
            closing.start();
        }
    }
}
