package kit;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Lite pull: the program asks for messages when it wants them. */
final class PullCases {
    private static final int PER_QUEUE = 5;
    private static final long QUIET_MS = 500;

    private PullCases() {
    }

    /** A second member of the group goes on from what the first has committed, not from what it has seen. */
    static void subscribe(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        List<MessageQueue> queues = scene.queues(topic);
        send(scene, queues, "committed");
        DefaultLitePullConsumer first = start(scene, group, topic);
        List<String> seen = bodies(poll(first, 20));
        Check.equal("first messages", 20L, seen.stream().distinct().filter(body -> body.startsWith("committed")).count());
        first.commitSync();
        send(scene, queues, "seen");
        Check.equal("messages that are not committed", 20, poll(first, 20).size());
        first.shutdown();
        send(scene, queues, "new");
        List<String> second = bodies(poll(start(scene, group, topic), 40));
        Check.equal("messages after a restart", 40L, second.stream().distinct().count());
        Check.that(second.stream().noneMatch(body -> body.startsWith("committed")), "committed messages came again: %s", second);
    }

    private static DefaultLitePullConsumer start(Scene scene, String group, String topic) throws Exception {
        DefaultLitePullConsumer consumer = scene.litePull(group);
        consumer.setAutoCommit(false);
        consumer.subscribe(topic, "*");
        consumer.start();
        return consumer;
    }

    /** Queues chosen by hand: seek, pause, commit, and a restart from there. */
    static void assign(Scene scene) throws Exception {
        String topic = scene.topic();
        String group = scene.named("group");
        List<MessageQueue> queues = scene.queues(topic);
        long middle = 0;
        for (int i = 0; i < PER_QUEUE; i++) {
            Thread.sleep(20);
            middle = i == 2 ? System.currentTimeMillis() : middle;
            Thread.sleep(20);
            for (MessageQueue queue : queues) {
                scene.producer().send(Scene.message(topic, "tag", "key", queue.getQueueId() + "-" + i), queue);
            }
        }
        DefaultLitePullConsumer consumer = scene.litePull(group);
        consumer.setAutoCommit(false);
        consumer.start();
        Check.equal("queues of the topic", queues, consumer.fetchMessageQueues(topic).stream().sorted().toList());
        for (MessageQueue queue : queues) {
            Check.equal("offset by time", 2L, offsetWhenIndexed(consumer, queue, middle));
        }
        consumer.assign(queues);
        // Until the first pulls have been answered: the client may take the answer to a pull that a seek has overtaken.
        Check.equal("messages from the begin", 20, poll(consumer, 20).size());
        for (MessageQueue queue : queues) {
            consumer.seek(queue, 3);
        }
        Check.equal("messages from offset 3 on", List.of("0-3", "0-4", "1-3", "1-4", "2-3", "2-4", "3-3", "3-4"), sorted(poll(consumer, 8)));
        consumer.seekToBegin(queues.get(1));
        Check.equal("messages of one queue from its begin", List.of("1-0", "1-1", "1-2", "1-3", "1-4"), sorted(poll(consumer, 5)));
        consumer.pause(List.of(queues.get(2)));
        consumer.seek(queues.get(2), 0);
        consumer.seekToEnd(queues.get(3));
        Check.equal("messages of a paused queue, and behind the end", List.of(), sorted(poll(consumer, 0)));
        consumer.resume(List.of(queues.get(2)));
        Check.equal("messages of the queue that goes on", List.of("2-0", "2-1", "2-2", "2-3", "2-4"), sorted(poll(consumer, 5)));
        consumer.seek(queues.get(0), 1);
        Check.equal("messages of queue 0", List.of("0-1", "0-2", "0-3", "0-4"), sorted(poll(consumer, 4)));
        consumer.commitSync();
        consumer.shutdown();
        send(scene, queues, "new");
        DefaultLitePullConsumer again = scene.litePull(group);
        again.start();
        again.assign(queues);
        for (MessageQueue queue : queues) {
            Check.equal("committed offset of " + queue, (long) PER_QUEUE, again.committed(queue));
        }
        List<String> rest = sorted(poll(again, 20));
        Check.equal("messages after a restart", 20L, rest.stream().distinct().filter(body -> body.startsWith("new")).count());
    }

    /** A server may need a moment until it finds by time what was sent just now. */
    private static long offsetWhenIndexed(DefaultLitePullConsumer consumer, MessageQueue queue, long time) throws Exception {
        double deadline = Received.now() + 5;
        long found = consumer.offsetForTimestamp(queue, time);
        while (found != 2 && Received.now() < deadline) {
            Thread.sleep(100);
            found = consumer.offsetForTimestamp(queue, time);
        }
        return found;
    }

    private static void send(Scene scene, List<MessageQueue> queues, String part) throws Exception {
        for (int i = 0; i < PER_QUEUE; i++) {
            for (MessageQueue queue : queues) {
                String body = part + " " + queue.getQueueId() + "-" + i;
                scene.producer().send(Scene.message(queue.getTopic(), "tag", "key", body), queue);
            }
        }
    }

    /** So many messages, each queue's in order, and whatever comes in a moment more. */
    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, int count) {
        List<MessageExt> polled = new ArrayList<>();
        double deadline = Received.now() + Scene.PATIENCE;
        while (polled.size() < count && Received.now() < deadline) {
            polled.addAll(consumer.poll(200));
        }
        polled.addAll(consumer.poll(QUIET_MS));
        Map<Integer, Long> last = new HashMap<>();
        for (MessageExt message : polled) {
            Long before = last.put(message.getQueueId(), message.getQueueOffset());
            Check.that(before == null || before < message.getQueueOffset(), "queue %d is out of order: %s", message.getQueueId(), bodies(polled));
        }
        Check.equal("polled messages", count, polled.size());
        return polled;
    }

    private static List<String> bodies(List<MessageExt> messages) {
        return messages.stream().map(message -> new String(message.getBody())).toList();
    }

    private static List<String> sorted(List<MessageExt> messages) {
        return bodies(messages).stream().sorted().toList();
    }
}
