package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.client.utils.MessageUtil;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** Clients of several access keys, {@code --keys key:secret,...}, in the same groups; the scene's own key administers. */
final class KeyCases {
    private static final long TIMEOUT_MS = 15_000;
    private static final int MESSAGES = 20;

    private final Scene scene;
    private final String topic;
    private final String group;
    private final List<Member> members = new ArrayList<>();
    /** What the members were given, but for questions. */
    private final Received received = new Received();

    private KeyCases(Scene scene) throws Exception {
        this.scene = scene;
        topic = scene.topic();
        group = scene.named("group");
        for (String key : scene.options.text("keys").split(",")) {
            members.add(new Member(scene.of(key), key.split(":")[0]));
        }
    }

    static void several(Scene scene) throws Exception {
        KeyCases cases = new KeyCases(scene);
        cases.share();
        cases.endTransactions();
        cases.ask();
        cases.administer();
    }

    /** A key with a member of the group and a producer. */
    private final class Member {
        final Scene scene;
        final String key;
        final DefaultMQPushConsumer consumer;
        final DefaultMQProducer producer;

        Member(Scene scene, String key) throws MQClientException {
            this.scene = scene;
            this.key = key;
            producer = scene.producer();
            consumer = scene.consumer(group);
            consumer.subscribe(topic, "*");
            Scene.take(consumer, this::consume);
            consumer.start();
        }

        private void consume(MessageExt message) {
            String body = new String(message.getBody(), UTF_8);
            if (!body.startsWith("question")) {
                received.add(key, message);
                return;
            }
            try {
                producer.send(MessageUtil.createReplyMessage(message, (key + " to " + body).getBytes(UTF_8)), TIMEOUT_MS);
            } catch (Exception error) {
                throw new IllegalStateException(error);
            }
        }
    }

    /** Members of all keys share the queues, and the messages of all keys. */
    private void share() throws Exception {
        for (Member member : members) {
            RebalanceCases.awaitHeld(member.consumer, Scene.QUEUES / members.size());
        }
        for (Member member : members) {
            for (int i = 0; i < MESSAGES; i++) {
                member.producer.send(Scene.message(topic, "tag", "key", member.key + " " + i));
            }
        }
        received.awaitExactly(MESSAGES * members.size(), Scene.PATIENCE);
        Check.equal("doubled", 0, received.doubled());
        Check.equal("members that were given messages", keys(), received.by(Received.Delivery::member).keySet());
    }

    /** The producers of all keys have the same group, and each is asked about its own half messages. */
    private void endTransactions() throws Exception {
        received.clear();
        Received asked = new Received();
        for (Member member : members) {
            TransactionMQProducer producer = member.scene.transactionProducer("transactions");
            producer.setTransactionListener(new TransactionListener() {
                @Override
                public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                    return argument == null ? LocalTransactionState.UNKNOW : LocalTransactionState.COMMIT_MESSAGE;
                }

                @Override
                public LocalTransactionState checkLocalTransaction(MessageExt message) {
                    asked.add(member.key, message);
                    return LocalTransactionState.COMMIT_MESSAGE;
                }
            });
            producer.start();
            for (int i = 0; i < MESSAGES; i++) {
                String argument = i % 2 == 0 ? "at once" : null;
                producer.sendMessageInTransaction(Scene.message(topic, "tag", "key", member.key + " " + i), argument);
            }
        }
        received.awaitExactly(MESSAGES * members.size(), 4.0 * scene.options.number("check-seconds", 60) + Scene.PATIENCE);
        Check.equal("questions", MESSAGES / 2 * members.size(), asked.by(Received.Delivery::body).size());
        for (Received.Delivery delivery : asked.all()) {
            Check.equal("key that was asked", delivery.body().split(" ")[0], delivery.member());
        }
    }

    /** Whichever key consumes a request, its reply comes to the key that has asked. */
    private void ask() throws Exception {
        for (Member member : members) {
            Set<String> answered = new TreeSet<>();
            for (MessageQueue queue : scene.queues(topic)) {
                String question = "question of " + member.key + " in " + queue.getQueueId();
                Message reply = member.producer.request(Scene.message(topic, "tag", "key", question), queue, TIMEOUT_MS);
                String[] said = new String(reply.getBody(), UTF_8).split(" to ");
                Check.equal("question", question, said[1]);
                answered.add(said[0]);
            }
            Check.equal("keys that have answered " + member.key, keys(), answered);
        }
    }

    /** The administrator knows each client by its own id. */
    private void administer() throws Exception {
        received.clear();
        SendResult sent = members.get(0).producer.send(Scene.message(topic, "tag", "key", "again"));
        received.await(1, Scene.PATIENCE);
        received.clear();
        DefaultMQAdminExt admin = scene.admin();
        Set<String> ids = members.stream().map(member -> member.consumer.buildMQClientId()).collect(Collectors.toSet());
        Check.equal("clients", ids, admin.examineConsumerConnectionInfo(group).getConnectionSet().stream()
            .map(connection -> connection.getClientId()).collect(Collectors.toSet()));
        for (Member member : members) {
            String id = member.consumer.buildMQClientId();
            var info = admin.getConsumerRunningInfo(group, id, true);
            Set<Integer> queues = info.getMqTable().keySet().stream().filter(queue -> queue.getTopic().equals(topic))
                .map(MessageQueue::getQueueId).collect(Collectors.toSet());
            Check.equal("queues of " + member.key, Scene.held(member.consumer), queues);
            Check.that(!info.getJstack().isEmpty(), "no stacks of %s", member.key);
            var result = admin.consumeMessageDirectly(group, id, topic, sent.getOffsetMsgId());
            Check.equal("result of " + member.key, "CR_SUCCESS", result.getConsumeResult().name());
        }
        Check.equal("members that were given it", keys(), received.by(Received.Delivery::member).keySet());
    }

    private Set<String> keys() {
        return members.stream().map(member -> member.key).collect(Collectors.toCollection(TreeSet::new));
    }
}
