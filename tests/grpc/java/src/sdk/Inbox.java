package sdk;

import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.message.MessageView;

/** The deliveries that consumers have got, in the order of their arrival. */
final class Inbox {
    /** Longer than anything takes on a busy machine. */
    static final Duration PATIENCE = Duration.ofSeconds(40);

    /** One delivery to one consumer. The SDK changes a view later, so the attempt is noted. */
    record Delivery(MessageView view, String body, int attempt, int consumer, long atMs) {
    }

    private final List<Delivery> deliveries = new ArrayList<>();

    static String bodyOf(MessageView view) {
        return StandardCharsets.UTF_8.decode(view.getBody()).toString();
    }

    synchronized void put(MessageView view, int consumer) {
        long now = System.currentTimeMillis();
        deliveries.add(new Delivery(view, bodyOf(view), view.getDeliveryAttempt(), consumer, now));
        notifyAll();
    }

    /** A listener that always succeeds. */
    MessageListener listener() {
        return view -> {
            put(view, 0);
            return ConsumeResult.SUCCESS;
        };
    }

    synchronized List<Delivery> all() {
        return List.copyOf(deliveries);
    }

    List<String> bodies() {
        return all().stream().map(Delivery::body).collect(Collectors.toList());
    }

    /** Wait until there are so many, and then a while for those that should not come. */
    List<Delivery> waitFor(int count, Duration more) throws InterruptedException {
        long until = System.nanoTime() + PATIENCE.toNanos();
        synchronized (this) {
            while (deliveries.size() < count && System.nanoTime() < until) {
                wait(100);
            }
        }
        if (all().size() >= count) {
            Thread.sleep(more.toMillis());
        }
        return all();
    }
}
