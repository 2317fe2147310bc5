package kit;

import java.io.PrintStream;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;

/**
 * Tries a server of RocketMQ's remoting protocol with RocketMQ's own client.
 *
 * <pre>
 * Kit --namesrv host:port [--suffix text] [--check-seconds n] [--at-once n] [--access-key a --secret-key s
 *     [--keys a:s,...]] [--tls] [case ...]
 * Kit --list
 * Kit topic --namesrv host:port --topic t                       makes a topic with four queues
 * Kit produce --namesrv host:port --topic t --count n [...]     see {@link Produce}
 * Kit consume --namesrv host:port --topic t --group g [...]     see {@link Consume}
 * </pre>
 *
 * Prints a line of JSON for each case, {@code {"case", "ok", "seconds", "detail", "figures"}}, and exits with 0 if all
 * are well. Without a name, or by "all", it runs all cases; by "quick", those that take seconds.
 */
public final class Kit {
    private static final PrintStream OUT = System.out;
    private static final double LIMIT_SECONDS = 170;
    private static final String LONG = "rebalance_load";

    interface Case {
        void run(Scene scene) throws Exception;
    }

    private Kit() {
    }

    public static void main(String[] arguments) {
        try {
            run(arguments);
        } catch (Exception failed) {
            failed.printStackTrace();
            System.exit(1); // or threads of a client that could not start keep the process
        }
        System.exit(0);
    }

    private static void run(String[] arguments) throws Exception {
        // The client prints to it now and then.
        System.setOut(System.err);
        Options options = new Options(arguments);
        Map<String, Case> cases = cases(options);
        if (options.has("list")) {
            print(Map.of("client", Versions.client(), "cases", cases.keySet()));
            System.exit(0);
        }
        switch (options.words.isEmpty() ? "" : options.words.get(0)) {
            case "produce" -> Produce.run(options);
            case "consume" -> Consume.run(options);
            case "topic" -> makeTopic(options);
            default -> System.exit(runCases(chosen(options.words, cases), options) ? 0 : 1);
        }
    }

    private static void makeTopic(Options options) throws Exception {
        try (Scene scene = new Scene("topic", options)) {
            Versions.createTopic(scene.producer(), options.text("topic"), Scene.QUEUES);
            print(Map.of("queues", scene.queues(options.text("topic")).size()));
        }
    }

    static void print(Map<String, ?> line) {
        synchronized (OUT) {
            OUT.println(Json.of(line));
            OUT.flush();
        }
    }

    private static Map<String, Case> cases(Options options) {
        Map<String, Case> cases = new LinkedHashMap<>();
        // Those that wait longest come first.
        if (options.has("keys")) {
            cases.put("keys", KeyCases::several);
        }
        cases.put("transactions", TransactionCases::all);
        cases.put("retry_dlq", RetryCases::deadLetter);
        cases.put("rebalance", RebalanceCases::split);
        if (Versions.hasRecall()) {
            cases.put("recall", DelayCases::recall);
        }
        if (Versions.hasDelayTime()) {
            cases.put("delay_time", DelayCases::time);
        }
        if (Versions.hasPop()) {
            cases.put("pop", PopCases::share);
            cases.put("consume_mode", PopCases::follow);
        }
        cases.put("delay_level", DelayCases::level);
        cases.put("trace", TraceCases::records);
        cases.put("lite_pull_subscribe", PullCases::subscribe);
        cases.put("lite_pull_assign", PullCases::assign);
        cases.put("broadcasting", RetryCases::broadcasting);
        cases.put("orderly", OrderCases::suspend);
        cases.put("orderly_dlq", OrderCases::deadLetter);
        cases.put("request_reply", RequestCases::reply);
        cases.put("request_timeout", RequestCases::timeout);
        cases.put("sql92", FilterCases::sql);
        cases.put("sql92_bad", FilterCases::badSql);
        cases.put("tags", FilterCases::tags);
        cases.put("query", QueryCases::messages);
        cases.put("query_offsets", QueryCases::offsets);
        cases.put("errors", ErrorCases::refused);
        cases.put("old_send", ErrorCases::oldAndUnknown);
        cases.put("send_sync", SendCases::sync);
        cases.put("send_async", SendCases::async);
        cases.put("send_oneway", SendCases::oneway);
        cases.put("compression", SendCases::compression);
        cases.put("batch", SendCases::batch);
        cases.put(LONG, RebalanceCases::load);
        return cases;
    }

    private static Map<String, Case> chosen(List<String> words, Map<String, Case> cases) {
        Map<String, Case> chosen = new LinkedHashMap<>();
        for (String word : words.isEmpty() ? List.of("all") : words) {
            if (cases.containsKey(word)) {
                chosen.put(word, cases.get(word));
            } else if (word.equals("all") || word.equals("quick")) {
                chosen.putAll(cases);
                if (word.equals("quick")) {
                    chosen.remove(LONG);
                }
            } else {
                throw new IllegalArgumentException("no case " + word + " with this client; --list names them");
            }
        }
        return chosen;
    }

    /** Several at a time: most of their time they wait. The long one runs alone when the others are through. */
    private static boolean runCases(Map<String, Case> cases, Options options) throws Exception {
        Case alone = cases.remove(LONG);
        ExecutorService pool = Executors.newFixedThreadPool(options.number("at-once", 30));
        List<Future<Boolean>> running = new ArrayList<>();
        cases.forEach((name, one) -> running.add(pool.submit(() -> runCase(name, one, options))));
        boolean isWell = true;
        for (Future<Boolean> result : running) {
            isWell &= result.get();
        }
        return isWell & (alone == null || runCase(LONG, alone, options));
    }

    private static boolean runCase(String name, Case one, Options options) throws InterruptedException {
        Scene scene = new Scene(name, options);
        ExecutorService own = Executors.newSingleThreadExecutor(work -> new Thread(work, "case " + name));
        double begin = Received.now();
        Future<?> running = own.submit(() -> {
            one.run(scene);
            return null;
        });
        String detail = null;
        try {
            running.get((long) (options.number("limit", (int) LIMIT_SECONDS) * 1000L), TimeUnit.MILLISECONDS);
        } catch (ExecutionException failed) {
            detail = failed.getCause() instanceof Check.Failed ? failed.getCause().getMessage() : String.valueOf(failed.getCause());
            detail += where(failed.getCause().getStackTrace());
        } catch (TimeoutException late) {
            detail = "it has no end" + where(stackOf(name));
        }
        Map<String, Object> line = new LinkedHashMap<>();
        line.put("case", name);
        line.put("ok", detail == null);
        line.put("seconds", Math.round((Received.now() - begin) * 1000) / 1000.0);
        line.put("detail", detail);
        line.put("figures", scene.figures);
        print(line);
        own.shutdownNow();
        scene.close();
        return detail == null;
    }

    private static StackTraceElement[] stackOf(String name) {
        return Thread.getAllStackTraces().entrySet().stream()
            .filter(thread -> thread.getKey().getName().equals("case " + name))
            .map(Map.Entry::getValue)
            .findFirst()
            .orElse(new StackTraceElement[0]);
    }

    /** The lines of the cases, without those of the helpers. */
    private static String where(StackTraceElement[] stack) {
        for (StackTraceElement frame : stack) {
            if (frame.getClassName().matches("kit\\..*Cases.*")) {
                return " (" + frame.getFileName() + ":" + frame.getLineNumber() + ")";
            }
        }
        return "";
    }
}
