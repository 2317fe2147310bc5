import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The client program of RocketMQ's remoting protocol, and the one that makes topics and groups of its broker. */
public final class RocketMQClient extends PeersClient {
    private final String nameServer = System.getenv("PEERS_NAME_SERVER");

    private RocketMQClient(String[] arguments) {
        super(arguments);
    }

    public static void main(String[] arguments) {
        new RocketMQClient(arguments).run();
    }

    private Message message() {
        Message message = new Message(topic(), "a", body());
        message.putUserProperty("k", "v");
        return message;
    }

    @Override
    void prepare(String role) throws Exception {
        if (!role.equals("topic")) {
            throw new IllegalArgumentException(role);
        }
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5_000);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        String broker = System.getenv("PEERS_BROKER");
        admin.createAndUpdateTopicConfig(broker, new TopicConfig(topic(), 4, 4));
        String group = option("group", null);
        if (group != null) {
            SubscriptionGroupConfig config = new SubscriptionGroupConfig();
            config.setGroupName(group);
            admin.createAndUpdateSubscriptionGroupConfig(broker, config);
        }
        report(0, 0, "");
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("" + result.getSendStatus());
        }
    }

    @Override
    Send sender() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        int batch = batch();
        Send single = () -> {
            check(producer.send(message()));
            return 1;
        };
        Send several = () -> {
            List<Message> messages = new ArrayList<>(batch);
            for (int i = 0; i < batch; i++) {
                messages.add(message());
            }
            check(producer.send(messages));
            return batch;
        };
        Send asynchronous = () -> {
            underWay.acquire();
            producer.send(message(), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    check(result);
                    underWay.release();
                }

                @Override
                public void onException(Throwable failure) {
                    fail(failure);
                }
            });
            return 1;
        };
        return underWay != null ? asynchronous : batch == 1 ? single : several;
    }

    @Override
    void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(option("group", "g"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (option("way", "").equals("push100")) {
            consumer.setConsumeMessageBatchMaxSize(100);
            consumer.setPullBatchSize(100);
        }
        String topic = topic();
        consumer.subscribe(topic, "*");
        if (measuresLatency()) {
            consumer.subscribe(WARM_UP_TOPIC, "*");
        }
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (messages.get(0).getTopic().equals(topic)) {
                arrived(messages.size());
                if (measuresLatency()) {
                    timed(messages.stream().map(MessageExt::getBody).toList());
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (!measuresLatency()) {
            ready();
        }
        consumer.start();
        if (measuresLatency()) {
            // A topic that is new may be assigned only by the next rebalance, 20 s later.
            var assigned = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            for (int i = 0; i < 400 && assigned.keySet().stream().noneMatch(q -> q.getTopic().equals(topic)); i++) {
                Thread.sleep(100);
            }
            ready();
        }
        reportArrivals();
        consumer.shutdown();
    }
}
