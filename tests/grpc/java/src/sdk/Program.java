package sdk;

import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;

/**
 * RocketMQ 5's Java SDK against a server of its protocol.
 *
 * <pre>
 * java sdk.Program ENDPOINT PREFIX CASE...
 * java sdk.Program worker ENDPOINT TOPIC GROUP
 * </pre>
 *
 * The topic of a case is named PREFIX-CASE and exists already; its consumer group has the same name. Each case prints a
 * line of JSON, {"case", "ok", "seconds", "detail"}. Several cases run at a time, because most of them wait. SDK_TLS in
 * the environment asks for TLS, SDK_ACCESS_KEY and SDK_SECRET_KEY for signatures.
 */
public final class Program {
    private static final int AT_A_TIME = 4;

    public static void main(String[] arguments) throws InterruptedException {
        if (arguments[0].equals("worker")) {
            Worker.run(arguments[1], arguments[2], arguments[3]);
        }
        String endpoint = arguments[0];
        String prefix = arguments[1];
        List<String> names = new ArrayList<>(Arrays.asList(arguments).subList(2, arguments.length));
        ExecutorService pool = Executors.newFixedThreadPool(AT_A_TIME);
        for (String name : names) {
            pool.execute(() -> say(name, run(endpoint, prefix, name)));
        }
        pool.shutdown();
        pool.awaitTermination(1, TimeUnit.HOURS);
        // A push consumer closes when its long poll has ended, up to 20 s later. Only the case "close" waits for that.
        Runtime.getRuntime().halt(0);
    }

    private record Result(double seconds, String detail) {
    }

    private static Result run(String endpoint, String prefix, String name) {
        long begin = System.nanoTime();
        String detail = null;
        try (Place place = new Place(endpoint, prefix + "-" + name)) {
            Cases.named(name).run(place);
        } catch (Throwable error) {
            detail = error.getClass().getSimpleName() + ": " + error.getMessage();
            error.printStackTrace();
        }
        return new Result((System.nanoTime() - begin) / 1e9, detail);
    }

    private static synchronized void say(String name, Result result) {
        System.out.printf(
            java.util.Locale.ROOT,
            "{\"case\": %s, \"ok\": %b, \"seconds\": %.3f, \"detail\": %s}%n",
            json(name), result.detail == null, result.seconds, json(result.detail));
        System.out.flush();
    }

    private static String json(String text) {
        if (text == null) {
            return "null";
        }
        StringBuilder quoted = new StringBuilder("\"");
        for (char each : text.toCharArray()) {
            if (each == '"' || each == '\\') {
                quoted.append('\\').append(each);
            } else if (each < 0x20 || each > 0x7e) {
                quoted.append(String.format("\\u%04x", (int) each));
            } else {
                quoted.append(each);
            }
        }
        return quoted.append('"').toString();
    }

    private Program() {
    }
}
