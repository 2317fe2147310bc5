package kit;

import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.producer.TransactionSendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;

/** Transactional messages, with checks as often as the broker makes them. */
final class TransactionCases {
    private static final List<String> KEYS =
        List.of("commit", "rollback", "unknown-commit", "unknown-twice-commit", "unknown-rollback", "throws-commit");

    private TransactionCases() {
    }

    static void all(Scene scene) throws Exception {
        String topic = scene.topic();
        int interval = scene.options.number("check-seconds", 60);
        Received received = scene.listen(topic, "*");
        Received checked = new Received();
        TransactionMQProducer producer = scene.transactionProducer("transactions");
        Answers answers = new Answers(checked);
        producer.setTransactionListener(answers);
        producer.start();
        // At once, before the first heartbeat of the producer.
        for (String key : KEYS) {
            Message message = Scene.message(topic, "tag", key, "body of " + key);
            message.putUserProperty("own", key);
            TransactionSendResult result = producer.sendMessageInTransaction(message, "argument of " + key);
            Check.equal("state of " + key, answers.first(key), result.getLocalTransactionState());
            Check.equal("transaction of " + key, result.getMsgId(), result.getTransactionId());
            answers.transactions.put(key, result.getTransactionId());
        }
        Check.equal("first message", "commit", received.await(1, Scene.PATIENCE).get(0).message().getKeys());
        received.awaitExactly(4, 4.0 * interval + Scene.PATIENCE);
        for (Received.Delivery delivery : received.all()) {
            String key = delivery.message().getKeys();
            Check.that(key.endsWith("commit"), "%s was not committed, and came", key);
            Check.equal("topic", topic, delivery.message().getTopic());
            Check.equal("body", "body of " + key, delivery.body());
            Check.equal("user property", key, delivery.message().getUserProperty("own"));
            Check.equal("id", answers.transactions.get(key), delivery.message().getMsgId());
        }
        Check.equal("doubled", 0, received.doubled());
        checked.await(5, 4.0 * interval + Scene.PATIENCE);
        checked.by(delivery -> delivery.message().getKeys()).forEach((key, list) -> {
            // RocketMQ may ask once more while an answer is on its way.
            int least = key.contains("twice") ? 2 : 1;
            scene.figures.put("checks_of_" + key, list.size());
            Check.within("checks of " + key, least, least + 1, list.size());
            MessageExt half = list.get(0).message();
            Check.equal("topic of the checked", topic, half.getTopic());
            Check.equal("body of the checked", "body of " + key, list.get(0).body());
            Check.equal("group of the checked", producer.getProducerGroup(), half.getProperty(MessageConst.PROPERTY_PRODUCER_GROUP));
            Check.equal("transaction of the checked", answers.transactions.get(key), half.getTransactionId());
        });
        Check.equal("argument of the local transaction", "argument of commit", answers.arguments.get("commit"));
    }

    /** The state that each key's transaction has, at first and when the broker asks. */
    private static final class Answers implements TransactionListener {
        final Map<String, Object> arguments = new ConcurrentHashMap<>();
        final Map<String, String> transactions = new ConcurrentHashMap<>();
        private final Map<String, AtomicInteger> asked = new ConcurrentHashMap<>();
        private final Received checked;

        Answers(Received checked) {
            this.checked = checked;
        }

        LocalTransactionState first(String key) {
            return switch (key) {
                case "commit" -> LocalTransactionState.COMMIT_MESSAGE;
                case "rollback" -> LocalTransactionState.ROLLBACK_MESSAGE;
                default -> LocalTransactionState.UNKNOW;
            };
        }

        @Override
        public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
            arguments.put(message.getKeys(), argument);
            if (message.getKeys().startsWith("throws")) {
                throw new IllegalStateException("as the case wants it");
            }
            return first(message.getKeys());
        }

        @Override
        public LocalTransactionState checkLocalTransaction(MessageExt message) {
            String key = message.getKeys();
            checked.add(message);
            int times = asked.computeIfAbsent(key, unused -> new AtomicInteger()).incrementAndGet();
            if (key.contains("twice") && times == 1) {
                return LocalTransactionState.UNKNOW;
            }
            return key.endsWith("commit") ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.ROLLBACK_MESSAGE;
        }
    }
}
