package sdk;

import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;

/** A push consumer that runs until it is killed. It prints ready, then got, the body and the attempt of each message. */
final class Worker {
    private static final int THREADS = 8;
    private static final int AGAIN_MS = 500;

    static void run(String endpoint, String topic, String group) throws InterruptedException {
        Place place = new Place(endpoint, topic);
        while (!start(place, group)) { // the server is being started again
            Thread.sleep(AGAIN_MS);
        }
        say("ready");
        Thread.sleep(Long.MAX_VALUE);
    }

    private static boolean start(Place place, String group) {
        try {
            place.push(group, FilterExpression.SUB_ALL, THREADS, view -> {
                say("got " + Inbox.bodyOf(view) + " " + view.getDeliveryAttempt());
                return ConsumeResult.SUCCESS;
            });
            return true;
        } catch (Exception error) {
            System.err.println(error);
            return false;
        }
    }

    /** One write, so that the whole line is there even if the process is killed. */
    private static synchronized void say(String line) {
        byte[] bytes = (line + "\n").getBytes(StandardCharsets.UTF_8);
        System.out.write(bytes, 0, bytes.length);
        System.out.flush();
    }

    private Worker() {
    }
}
