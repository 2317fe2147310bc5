package shop;

import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.spring.annotation.RocketMQMessageListener;
import org.apache.rocketmq.spring.core.RocketMQListener;
import org.apache.rocketmq.spring.core.RocketMQPushConsumerLifecycleListener;
import org.apache.rocketmq.spring.core.RocketMQTemplate;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.context.ConfigurableApplicationContext;
import org.springframework.messaging.support.MessageBuilder;
import org.springframework.stereotype.Component;

/**
 * A program with Spring Boot against a server of RocketMQ's protocol: sends, consumes, and has one message fail once.
 *
 * <pre>Shop host:port topic</pre>
 *
 * The topic must exist; all groups are named after it. Prints a line of JSON, {"case", "ok", "seconds", "detail",
 * "figures"}, and exits with 0 if all is well.
 */
@SpringBootApplication
public class Shop {
    private static final int COUNT = 20;
    private static final long PATIENCE_MS = 90_000;
    /** A JVM on a busy machine may need longer than the usual 3 s to connect and to read an answer. */
    private static final int ANSWER_MS = 30_000;

    public static void main(String[] arguments) {
        long begin = System.currentTimeMillis();
        SpringApplication application = new SpringApplication(Shop.class);
        application.setDefaultProperties(Map.of(
            "rocketmq.name-server", arguments[0],
            "rocketmq.producer.group", arguments[1] + "-producers",
            "rocketmq.producer.send-message-timeout", ANSWER_MS,
            "shop.topic", arguments[1],
            "spring.main.banner-mode", "off",
            "logging.level.root", "ERROR"));
        String detail = null;
        double retry = 0;
        try (ConfigurableApplicationContext context = application.run()) {
            Orders orders = context.getBean(Orders.class);
            detail = trade(context.getBean(RocketMQTemplate.class), orders, arguments[1]);
            retry = orders.retrySeconds;
        } catch (Exception error) {
            detail = error.toString();
        }
        System.out.printf(
            "{\"case\": \"spring\", \"ok\": %s, \"seconds\": %s, \"detail\": %s, \"figures\": {\"first_retry_seconds\": %s}}%n",
            detail == null, (System.currentTimeMillis() - begin) / 1000.0,
            detail == null ? "null" : "\"" + detail.replaceAll("[^ -~]|[\"\\\\]", "?") + "\"", retry);
        System.exit(detail == null ? 0 : 1);
    }

    /** What is wrong, or null. */
    private static String trade(RocketMQTemplate template, Orders orders, String topic) throws InterruptedException {
        // A listener starts at the end of its topic: its first messages may come before it does.
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        while (!orders.isListening && System.currentTimeMillis() < deadline) {
            template.syncSend(topic, "first");
            Thread.sleep(500);
        }
        for (int i = 0; i < COUNT; i++) {
            var message = MessageBuilder.withPayload("body " + i).setHeader("KEYS", "key" + i).setHeader("own", "own " + i).build();
            SendResult result = template.syncSend(topic + ":tag" + i % 2, message);
            if (result.getSendStatus() != SendStatus.SEND_OK) {
                return "status of the send: " + result.getSendStatus();
            }
        }
        while (orders.total() < COUNT + 1 && System.currentTimeMillis() < deadline) {
            Thread.sleep(50);
        }
        Thread.sleep(500);
        for (int i = 0; i < COUNT; i++) {
            if (orders.times("body " + i) != (i == 3 ? 2 : 1)) {
                return "body " + i + " came " + orders.times("body " + i) + " times";
            }
        }
        return orders.fault;
    }

    /** The listener. */
    @Component
    @RocketMQMessageListener(topic = "${shop.topic}", consumerGroup = "${shop.topic}-consumers", delayLevelWhenNextConsume = 1)
    public static class Orders implements RocketMQListener<MessageExt>, RocketMQPushConsumerLifecycleListener {
        volatile boolean isListening;
        volatile String fault;
        volatile double retrySeconds;
        private final Map<String, Integer> times = new TreeMap<>();
        private long failedAt;

        @Override
        public void prepareStart(DefaultMQPushConsumer consumer) {
            consumer.setMqClientApiTimeout(ANSWER_MS);
        }

        @Override
        public synchronized void onMessage(MessageExt message) {
            isListening = true;
            String body = new String(message.getBody(), StandardCharsets.UTF_8);
            if (body.equals("first")) {
                return;
            }
            int now = times.merge(body, 1, Integer::sum);
            String number = body.substring(5);
            if (!("key" + number).equals(message.getKeys()) || !("own " + number).equals(message.getProperty("own"))) {
                fault = body + " has keys " + message.getKeys() + ", own " + message.getProperty("own");
            }
            if (body.equals("body 3") && now == 1) {
                failedAt = System.nanoTime();
                throw new IllegalStateException("as the program wants it");
            }
            if (body.equals("body 3")) {
                retrySeconds = (System.nanoTime() - failedAt) / 1e9;
            }
        }

        synchronized int times(String body) {
            return times.getOrDefault(body, 0);
        }

        synchronized int total() {
            return times.values().stream().mapToInt(Integer::intValue).sum();
        }
    }
}
