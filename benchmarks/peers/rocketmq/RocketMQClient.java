import java.nio.charset.StandardCharsets;
import java.time.Instant;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Random;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
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
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;

/** The client program of RocketMQ: the same roles, options, messages and answers as those in workers/work.py. */
public final class RocketMQClient {
    private static final int CLOCK_DIGITS = 20;
    private static final long FIRST_MESSAGE_MS = 30_000;
    /** The compiler of the JVM needs some 100,000 messages; until then rates are not those of RocketMQ. */
    private static final double WARM_UP_SECONDS = 4;
    /** Consumers that measure latencies warm up by its messages, and do not count them. */
    private static final String WARM_UP_TOPIC = "bench";
    private static final String LETTERS = letters();

    private final Map<String, String> options = new HashMap<>();
    private final String role;
    private final String nameServer = System.getenv("PEERS_NAME_SERVER");

    private interface Send {
        int call() throws Exception;
    }

    private RocketMQClient(String[] arguments) {
        role = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            boolean isFlag = i + 1 == arguments.length || arguments[i + 1].startsWith("--");
            options.put(arguments[i].substring(2), isFlag ? "" : arguments[++i]);
        }
    }

    public static void main(String[] arguments) {
        RocketMQClient client = new RocketMQClient(arguments);
        int status = 0;
        try {
            switch (client.role) {
                case "topic" -> client.makeTopic();
                case "consume" -> client.consume();
                default -> client.send();
            }
        } catch (Exception failure) {
            failure.printStackTrace();
            status = 1;
        }
        // Threads of the library would keep the JVM alive.
        System.out.flush();
        Runtime.getRuntime().halt(status);
    }

    private static String letters() {
        Random random = new Random(1);
        StringBuilder text = new StringBuilder();
        for (int i = 0; i < 180; i++) {
            text.append((char) ('a' + random.nextInt(26)));
        }
        return text.toString();
    }

    private String option(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    private double number(String name, double otherwise) {
        return Double.parseDouble(option(name, String.valueOf(otherwise)));
    }

    private static long clock() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static double seconds() {
        return System.nanoTime() / 1e9;
    }

    private Message message() {
        String body = String.format("%0" + CLOCK_DIGITS + "d", clock()) + LETTERS;
        Message message = new Message(option("topic", "bench"), "a", body.getBytes(StandardCharsets.US_ASCII));
        message.putUserProperty("k", "v");
        return message;
    }

    private static void ready() {
        System.out.println("READY");
        System.out.flush();
    }

    private static void report(long count, double seconds, String more) {
        System.out.println(String.format(Locale.ROOT, "{\"count\": %d, \"seconds\": %.6f%s}", count, seconds, more));
    }

    private void makeTopic() throws Exception {
        DefaultMQAdminExt admin = new DefaultMQAdminExt(5_000);
        admin.setNamesrvAddr(nameServer);
        admin.start();
        admin.createAndUpdateTopicConfig(System.getenv("PEERS_BROKER"), new TopicConfig(option("topic", "bench"), 4, 4));
        report(0, 0, "");
    }

    private static void check(SendResult result) {
        if (result.getSendStatus() != SendStatus.SEND_OK) {
            throw new IllegalStateException("" + result.getSendStatus());
        }
    }

    private void send() throws Exception {
        DefaultMQProducer producer = new DefaultMQProducer("bench");
        producer.setNamesrvAddr(nameServer);
        producer.setSendMsgTimeout(30_000);
        producer.start();
        int batch = (int) number("batch", 1);
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
        Semaphore underWay = new Semaphore((int) number("under-way", 0));
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
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            return 1;
        };
        Send call = options.containsKey("under-way") ? asynchronous : batch == 1 ? single : several;
        switch (role) {
            case "pace" -> pace(call);
            case "load" -> load(call);
            default -> produce(call);
        }
    }

    private void load(Send call) throws Exception {
        ready();
        long wanted = (long) number("count", 0);
        long sent = 0;
        double began = seconds();
        while (sent < wanted) {
            sent += call.call();
        }
        report(sent, seconds() - began, "");
    }

    private void pace(Send call) throws Exception {
        String topic = options.put("topic", WARM_UP_TOPIC);
        together(WARM_UP_SECONDS, call);
        options.put("topic", topic);
        ready();
        double rate = number("rate", 0);
        double wanted = number("seconds", 5) * rate;
        long began = System.nanoTime();
        long late = 0;
        long sent = 0;
        while (sent < wanted) {
            long wait = began + (long) (sent / rate * 1e9) - System.nanoTime();
            if (wait > 0) {
                LockSupport.parkNanos(wait);
            } else if (wait < -50_000_000L) {
                late++;
            }
            call.call();
            sent++;
        }
        report(sent, (System.nanoTime() - began) / 1e9, ", \"late\": " + late);
    }

    private void produce(Send call) throws Exception {
        together(WARM_UP_SECONDS, call);
        ready();
        double began = seconds();
        long sent = together(number("seconds", 5), call);
        report(sent, seconds() - began, "");
    }

    /** Send as fast as possible on all threads; a failure ends the program. */
    private long together(double duration, Send call) throws InterruptedException {
        double end = seconds() + duration;
        AtomicLong sent = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < (int) number("senders", 1); i++) {
            Thread thread = new Thread(() -> {
                try {
                    while (seconds() < end) {
                        sent.addAndGet(call.call());
                    }
                } catch (Exception failure) {
                    failure.printStackTrace();
                    Runtime.getRuntime().halt(1);
                }
            });
            thread.start();
            threads.add(thread);
        }
        for (Thread thread : threads) {
            thread.join();
        }
        return sent.get();
    }

    private void consume() throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(option("group", "g"));
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        if (option("way", "").equals("push100")) {
            consumer.setConsumeMessageBatchMaxSize(100);
            consumer.setPullBatchSize(100);
        }
        String topic = option("topic", WARM_UP_TOPIC);
        consumer.subscribe(topic, "*");
        AtomicLong count = new AtomicLong();
        AtomicLong first = new AtomicLong();
        AtomicLong last = new AtomicLong();
        int skipped = (int) number("skipped", -1);
        if (skipped >= 0) {
            consumer.subscribe(WARM_UP_TOPIC, "*");
        }
        List<Double> latencies = Collections.synchronizedList(new ArrayList<>());
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            if (!messages.get(0).getTopic().equals(topic)) {
                return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            }
            long now = System.nanoTime();
            first.compareAndSet(0, now);
            last.set(now);
            count.addAndGet(messages.size());
            if (skipped >= 0) {
                long clock = clock();
                for (MessageExt message : messages) {
                    String sent = new String(message.getBody(), 0, CLOCK_DIGITS, StandardCharsets.US_ASCII);
                    latencies.add((clock - Long.parseLong(sent)) / 1e6);
                }
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        if (skipped < 0) {
            ready();
        }
        consumer.start();
        if (skipped >= 0) {
            // A topic that is new may be assigned only by the next rebalance, 20 s later.
            var assigned = consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable();
            for (int i = 0; i < 400 && assigned.keySet().stream().noneMatch(q -> q.getTopic().equals(topic)); i++) {
                Thread.sleep(100);
            }
            ready();
        }
        long limit = (long) number("count", Long.MAX_VALUE);
        double duration = number("seconds", 5);
        long created = System.nanoTime();
        while (count.get() < limit) {
            long now = System.nanoTime();
            boolean isOver = first.get() == 0
                ? now - created > FIRST_MESSAGE_MS * 1_000_000L
                : now - first.get() > duration * 1e9;
            if (isOver) {
                break;
            }
            Thread.sleep(20);
        }
        long counted = count.get();
        double taken = (last.get() - first.get()) / 1e9;
        List<Double> measured;
        synchronized (latencies) {
            measured = new ArrayList<>(latencies.subList(Math.min(Math.max(skipped, 0), latencies.size()), latencies.size()));
        }
        consumer.shutdown();
        Collections.sort(measured);
        report(counted, taken, measured.isEmpty() ? "" : percentiles(measured));
    }

    private static String percentiles(List<Double> ascending) {
        StringBuilder text = new StringBuilder();
        for (int percent : new int[] {50, 99}) {
            int place = Math.min(ascending.size() * percent / 100, ascending.size() - 1);
            text.append(String.format(Locale.ROOT, ", \"p%d\": %.3f", percent, ascending.get(place)));
        }
        return text.toString();
    }
}
