package kit;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.function.Function;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.message.MessageExt;

/** The messages that listeners were given, in the order of their arrival. Listeners of several threads may add. */
final class Received {
    /** A message, the member that got it, how often it had failed then, and when, in seconds of {@link #now}. */
    record Delivery(String member, MessageExt message, int reconsumeTimes, double at) {
        String body() {
            return new String(message.getBody(), UTF_8);
        }
    }

    private static final long QUIET_MS = 600;

    private final List<Delivery> deliveries = new ArrayList<>();

    static double now() {
        return System.nanoTime() / 1e9;
    }

    void add(MessageExt message) {
        add("", message);
    }

    synchronized void add(String member, MessageExt message) {
        deliveries.add(new Delivery(member, message, message.getReconsumeTimes(), now()));
        notifyAll();
    }

    synchronized void clear() {
        deliveries.clear();
    }

    synchronized List<Delivery> all() {
        return List.copyOf(deliveries);
    }

    synchronized int count() {
        return deliveries.size();
    }

    /** Waits for so many deliveries. Raises Failed after the seconds. */
    synchronized List<Delivery> await(int count, double seconds) throws InterruptedException {
        double deadline = now() + seconds;
        while (deliveries.size() < count) {
            double left = deadline - now();
            Check.that(left > 0, "%d of %d messages came in %.0f s: %s", deliveries.size(), count, seconds, few(bodies()));
            wait(Math.max(1, (long) (left * 1000)));
        }
        return List.copyOf(deliveries);
    }

    /** Waits for so many different bodies. */
    void awaitDifferent(int count, double seconds) throws InterruptedException {
        double deadline = now() + seconds;
        while (by(Delivery::body).size() < count) {
            Check.that(now() < deadline, "%d of %d messages came in %.0f s", by(Delivery::body).size(), count, seconds);
            Thread.sleep(20);
        }
        Thread.sleep(QUIET_MS);
    }

    /** Waits for so many deliveries, and a little longer for those that are too many. */
    List<Delivery> awaitExactly(int count, double seconds) throws InterruptedException {
        await(count, seconds);
        Thread.sleep(QUIET_MS);
        Check.that(count() == count, "%d messages came, %d were expected: %s", count(), count, few(bodies()));
        return all();
    }

    synchronized List<String> bodies() {
        return deliveries.stream().map(Delivery::body).toList();
    }

    List<String> sortedBodies() {
        return bodies().stream().sorted().toList();
    }

    /** The deliveries of each body, or of whatever else the function takes from one. */
    TreeMap<String, List<Delivery>> by(Function<Delivery, String> key) {
        return all().stream().collect(Collectors.groupingBy(key, TreeMap::new, Collectors.toList()));
    }

    /** How often a body that came more than once came too much, summed. */
    int doubled() {
        return count() - by(Delivery::body).size();
    }

    /** The deliveries of each queue came with rising offsets. */
    void checkOrder() {
        by(delivery -> String.valueOf(delivery.message().getQueueId())).forEach((queue, list) -> {
            List<Long> offsets = list.stream().map(delivery -> delivery.message().getQueueOffset()).toList();
            Check.equal("order of queue " + queue, offsets.stream().sorted().distinct().toList(), offsets);
        });
    }

    private static String few(List<String> bodies) {
        List<String> shown = bodies.stream().limit(20).map(body -> body.length() > 40 ? body.substring(0, 40) : body).toList();
        return shown + (bodies.size() > shown.size() ? " ..." : "");
    }
}
