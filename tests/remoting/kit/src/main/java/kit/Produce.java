package kit;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.SendStatus;

/**
 * Sends messages, and says of each when the server has it.
 *
 * <pre>produce --topic t --count n [--threads 1] [--prefix text] [--tag tag] [--orders n] [--pause-ms 0] [--group g]</pre>
 *
 * Bodies and keys are {@code <prefix>-<number>}. With {@code --orders} each message belongs to the order of its number
 * modulo n, which has one queue and one thread, so that its numbers rise in the queue. A failed send is tried again by
 * the client, then by this program for ever: it may be stored twice, but is not missing. Lines: {@code {"ready": true}},
 * {@code {"sent", "msg_id", "queue_id"}}, {@code {"error"}}, and {@code {"done", "seconds"}} at the end.
 */
final class Produce {
    private Produce() {
    }

    static void run(Options options) throws Exception {
        int count = options.number("count", 1);
        int threads = options.number("threads", 1);
        int orders = options.number("orders", 0);
        try (Scene scene = new Scene("produce", options)) {
            DefaultMQProducer producer = scene.producer(options.text("group", "produce"));
            producer.start();
            Kit.print(Map.of("ready", true));
            double begin = Received.now();
            AtomicInteger sent = new AtomicInteger();
            List<Thread> running = new ArrayList<>();
            for (int thread = 0; thread < threads; thread++) {
                int own = thread;
                Thread one = new Thread(() -> {
                    for (int number = 0; number < count; number++) {
                        if ((orders > 0 ? number % orders : number) % threads == own) {
                            sendUntilStored(producer, options, number, orders);
                            sent.incrementAndGet();
                        }
                    }
                });
                one.start();
                running.add(one);
            }
            for (Thread one : running) {
                one.join();
            }
            Kit.print(Map.of("done", sent.get(), "seconds", Received.now() - begin));
        }
    }

    private static void sendUntilStored(DefaultMQProducer producer, Options options, int number, int orders) {
        String body = options.text("prefix", "message") + "-" + number;
        while (true) {
            try {
                var message = Scene.message(options.text("topic"), options.text("tag", "tag"), body, body);
                SendResult result = orders == 0
                    ? producer.send(message)
                    : producer.send(message, (queues, unused, order) -> queues.get((int) order % queues.size()), number % orders);
                if (result.getSendStatus() == SendStatus.SEND_OK) {
                    Map<String, Object> line = new LinkedHashMap<>();
                    line.put("sent", body);
                    line.put("msg_id", result.getMsgId());
                    line.put("queue_id", result.getMessageQueue().getQueueId());
                    Kit.print(line);
                    Thread.sleep(options.number("pause-ms", 0));
                    return;
                }
                Kit.print(Map.of("error", result.toString()));
            } catch (InterruptedException stopped) {
                throw new IllegalStateException(stopped);
            } catch (Exception error) {
                Kit.print(Map.of("error", error.toString()));
                pause();
            }
        }
    }

    private static void pause() {
        try {
            Thread.sleep(100);
        } catch (InterruptedException stopped) {
            throw new IllegalStateException(stopped);
        }
    }
}
