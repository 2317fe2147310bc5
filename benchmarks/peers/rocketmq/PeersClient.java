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

/** A client program in Java: the same roles, options, messages and answers as those in workers/work.py. */
abstract class PeersClient {
    /** Consumers that measure latencies warm up by its messages, and do not count them. */
    static final String WARM_UP_TOPIC = "bench";
    private static final int CLOCK_DIGITS = 20;
    private static final long FIRST_MESSAGE_MS = 30_000;
    /** The compiler of the JVM needs some 100,000 messages; until then rates are not those of RocketMQ. */
    private static final double WARM_UP_SECONDS = 4;
    private static final String LETTERS = letters();

    private final Map<String, String> options = new HashMap<>();
    private final String role;
    private final int mostUnderWay;
    /** A permit for each send that may go without an answer; null: each send waits for its own. */
    final Semaphore underWay;
    /** How many latencies do not count; below 0, none is measured. */
    private final int skipped;
    private final AtomicLong count = new AtomicLong();
    private final AtomicLong first = new AtomicLong();
    private final AtomicLong last = new AtomicLong();
    private final List<Double> latencies = Collections.synchronizedList(new ArrayList<>());

    /** A call that returns how many messages it sent. */
    interface Send {
        int call() throws Exception;
    }

    PeersClient(String[] arguments) {
        role = arguments[0];
        for (int i = 1; i < arguments.length; i++) {
            boolean isFlag = i + 1 == arguments.length || arguments[i + 1].startsWith("--");
            options.put(arguments[i].substring(2), isFlag ? "" : arguments[++i]);
        }
        mostUnderWay = (int) number("under-way", 0);
        underWay = mostUnderWay > 0 ? new Semaphore(mostUnderWay) : null;
        skipped = (int) number("skipped", -1);
    }

    /** The call that the options ask for. */
    abstract Send sender() throws Exception;

    abstract void consume() throws Exception;

    /** The role that only this client has. */
    abstract void prepare(String role) throws Exception;

    void run() {
        int status = 0;
        try {
            switch (role) {
                case "produce" -> produce(sender());
                case "load" -> load(sender());
                case "pace" -> pace(sender());
                case "consume" -> consume();
                default -> prepare(role);
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

    String option(String name, String otherwise) {
        return options.getOrDefault(name, otherwise);
    }

    double number(String name, double otherwise) {
        return Double.parseDouble(option(name, String.valueOf(otherwise)));
    }

    String topic() {
        return option("topic", WARM_UP_TOPIC);
    }

    int batch() {
        return (int) number("batch", 1);
    }

    static byte[] body() {
        String body = String.format("%0" + CLOCK_DIGITS + "d", clock()) + LETTERS;
        return body.getBytes(StandardCharsets.US_ASCII);
    }

    private static long clock() {
        Instant now = Instant.now();
        return now.getEpochSecond() * 1_000_000_000L + now.getNano();
    }

    private static double seconds() {
        return System.nanoTime() / 1e9;
    }

    static void ready() {
        System.out.println("READY");
        System.out.flush();
    }

    static void report(long count, double seconds, String more) {
        System.out.println(String.format(Locale.ROOT, "{\"count\": %d, \"seconds\": %.6f%s}", count, seconds, more));
    }

    /** End the program because of a send whose failure no caller sees. */
    static void fail(Throwable failure) {
        failure.printStackTrace();
        Runtime.getRuntime().halt(1);
    }

    private void load(Send call) throws Exception {
        ready();
        long wanted = (long) number("count", 0);
        long sent = 0;
        double began = seconds();
        while (sent < wanted) {
            sent += call.call();
        }
        if (underWay != null) {
            underWay.acquire(mostUnderWay);
        }
        report(sent, seconds() - began, "");
    }

    private void pace(Send call) throws Exception {
        String topic = options.put("topic", WARM_UP_TOPIC);
        together(warmUpSeconds(), 1, call);
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
        int threads = (int) number("senders", 1);
        together(warmUpSeconds(), warmUpThreads(threads), call);
        ready();
        double began = seconds();
        long sent = together(number("seconds", 5), threads, call);
        report(sent, seconds() - began, "");
    }

    /** How long the client sends before it is measured. */
    double warmUpSeconds() {
        return WARM_UP_SECONDS;
    }

    /** How many threads send before so many are measured. */
    int warmUpThreads(int threads) {
        return threads;
    }

    /** Send as fast as possible on some threads; a failure ends the program. */
    private long together(double duration, int count, Send call) throws InterruptedException {
        double end = seconds() + duration;
        AtomicLong sent = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            Thread thread = new Thread(() -> {
                try {
                    while (seconds() < end) {
                        sent.addAndGet(call.call());
                    }
                } catch (Exception failure) {
                    fail(failure);
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

    boolean measuresLatency() {
        return skipped >= 0;
    }

    /** Count messages that a listener has just been given. */
    void arrived(int messages) {
        long now = System.nanoTime();
        first.compareAndSet(0, now);
        last.set(now);
        count.addAndGet(messages);
    }

    /** Measure the time since a message with these bodies was made, for each of them. */
    void timed(List<byte[]> bodies) {
        long clock = clock();
        for (byte[] body : bodies) {
            String sent = new String(body, 0, CLOCK_DIGITS, StandardCharsets.US_ASCII);
            latencies.add((clock - Long.parseLong(sent)) / 1e6);
        }
    }

    /** Wait until the listener has had all messages or its time is over, and report that. */
    void reportArrivals() throws InterruptedException {
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
