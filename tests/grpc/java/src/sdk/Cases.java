package sdk;

import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.IntStream;
import org.apache.rocketmq.client.apis.ClientException;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;
import org.apache.rocketmq.client.java.exception.NotFoundException;
import sdk.Inbox.Delivery;

/** The cases. A new group gets only messages that are sent after it has begun, so each case starts its consumer first. */
final class Cases {
    interface Case {
        void run(Place place) throws Exception;
    }

    private static final Map<String, Case> BY_NAME = Map.ofEntries(
        Map.entry("send", Cases::send),
        Map.entry("push", Cases::push),
        Map.entry("tags", Cases::tags),
        Map.entry("sql", Cases::sql),
        Map.entry("fifo", Cases::fifo),
        Map.entry("delay", Cases::delay),
        Map.entry("recall", Cases::recall),
        Map.entry("transaction_commit", Cases::transactionCommit),
        Map.entry("transaction_rollback", Cases::transactionRollback),
        Map.entry("transaction_check", Cases::transactionCheck),
        Map.entry("retry", Cases::retry),
        Map.entry("dlq", Cases::dlq),
        Map.entry("fifo_dlq", Cases::fifoDlq),
        Map.entry("fifo_simple", Cases::fifoSimple),
        Map.entry("large", Cases::large),
        Map.entry("unknown_topic", Cases::unknownTopic),
        Map.entry("slow", Cases::slow),
        Map.entry("restart", Cases::restart),
        Map.entry("change_invisible", Cases::changeInvisible),
        Map.entry("workers", Cases::workers),
        Map.entry("subscribe", Cases::subscribe),
        Map.entry("close", Cases::close));

    private static final Duration A_WHILE = Duration.ofSeconds(1);

    /** How long a simple consumer keeps a message for itself. */
    private static final Duration INVISIBLE = Duration.ofSeconds(30);

    /** A clock that is read in milliseconds on one side. */
    private static final long ROUNDING_MS = 1;

    static Case named(String name) {
        Case found = BY_NAME.get(name);
        check(found != null, "there is no case " + name);
        return found;
    }

    private static void check(boolean isTrue, String otherwise) {
        if (!isTrue) {
            throw new AssertionError(otherwise);
        }
    }

    private static void same(String what, Object wanted, Object got) {
        check(Objects.equals(wanted, got), what + " should be " + wanted + " and is " + got);
    }

    private static List<String> sorted(Iterable<String> texts) {
        List<String> list = new ArrayList<>();
        texts.forEach(list::add);
        Collections.sort(list);
        return list;
    }

    private static List<String> bodies(String stem, int count) {
        return IntStream.range(0, count).mapToObj(i -> String.format("%s %02d", stem, i)).collect(Collectors.toList());
    }

    // -- sends and filters --------------------------------------------------------------------

    private static void send(Place place) throws Exception {
        int count = 10;
        SimpleConsumer consumer = place.simple();
        CompletableFuture<List<MessageView>> first = consumer.receiveAsync(32, INVISIBLE);
        Thread.sleep(1_000);
        Producer producer = place.producer();
        Map<String, Integer> numbers = new TreeMap<>();
        long before = System.currentTimeMillis();
        for (int i = 0; i < count; i++) {
            SendReceipt receipt = producer.send(place.builder("body \u00e9 " + i)
                .setTag("tag" + i % 2).setKeys("key" + i, "all").addProperty("number", "" + i).build());
            numbers.put(receipt.getMessageId().toString(), i);
        }
        same("number of ids", count, numbers.size());
        List<MessageView> got = new ArrayList<>(first.get());
        for (int tries = 0; got.size() < count && tries < 8; tries++) {
            got.addAll(consumer.receive(32, INVISIBLE));
        }
        same("number of messages", count, got.size());
        for (MessageView view : got) {
            Integer i = numbers.remove(view.getMessageId().toString());
            check(i != null, "not sent, or here twice: " + view);
            same("topic", place.topic, view.getTopic());
            same("body", "body \u00e9 " + i, Inbox.bodyOf(view));
            same("tag", Optional.of("tag" + i % 2), view.getTag());
            same("keys", Set.of("key" + i, "all"), Set.copyOf(view.getKeys()));
            same("properties", Map.of("number", "" + i), view.getProperties());
            same("attempt", 1, view.getDeliveryAttempt());
            same("message group", Optional.empty(), view.getMessageGroup());
            same("delivery time", Optional.empty(), view.getDeliveryTimestamp());
            check(!view.getBornHost().isEmpty(), "no born host");
            long born = view.getBornTimestamp();
            check(born >= before && born <= System.currentTimeMillis(), "born at " + born);
            consumer.ack(view);
        }
    }

    private static void push(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer();
        List<String> sent = bodies("push", 50);
        for (String body : sent) {
            producer.send(place.message(body));
        }
        inbox.waitFor(sent.size(), A_WHILE);
        same("messages", sent, sorted(inbox.bodies()));
    }

    private static void tags(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(new FilterExpression("a || b", FilterExpressionType.TAG), 8, inbox.listener());
        Producer producer = place.producer();
        for (String body : bodies("tags", 5)) {
            producer.send(place.message(body + " untagged"));
            for (String tag : List.of("a", "b", "c")) {
                producer.send(place.builder(body + " " + tag).setTag(tag).build());
            }
        }
        List<String> wanted = new ArrayList<>();
        for (String body : bodies("tags", 5)) {
            wanted.add(body + " a");
            wanted.add(body + " b");
        }
        inbox.waitFor(wanted.size(), A_WHILE);
        same("messages", wanted, sorted(inbox.bodies()));
    }

    private static void sql(Place place) throws Exception {
        Inbox inbox = new Inbox();
        String expression = "number > 5 AND (color = 'red' OR TAGS = 'blue')";
        place.push(new FilterExpression(expression, FilterExpressionType.SQL92), 8, inbox.listener());
        Producer producer = place.producer();
        for (int i = 0; i < 10; i++) {
            String number = "" + i;
            producer.send(place.builder("red " + i).addProperty("number", number).addProperty("color", "red").build());
            producer.send(place.builder("blue " + i).addProperty("number", number).setTag("blue").build());
            producer.send(place.builder("green " + i).addProperty("number", number).addProperty("color", "green").build());
        }
        producer.send(place.message("nothing"));
        inbox.waitFor(8, A_WHILE);
        same("messages",
            List.of("blue 6", "blue 7", "blue 8", "blue 9", "red 6", "red 7", "red 8", "red 9"),
            sorted(inbox.bodies()));
    }

    private static void large(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        String body = "0123456789abcdef".repeat(4 * 1024 * 1024 / 16);
        place.producer().send(place.message(body));
        inbox.waitFor(1, A_WHILE);
        check(inbox.bodies().equals(List.of(body)), "the body is another one");
    }

    private static void unknownTopic(Place place) throws Exception {
        try {
            place.other("-none").producer();
            throw new AssertionError("a producer starts for a topic that does not exist");
        } catch (IllegalStateException refused) {
            Throwable cause = refused;
            while (cause.getCause() != null) {
                cause = cause.getCause();
            }
            check(cause instanceof NotFoundException, "refused for another reason: " + cause);
        }
    }

    // -- order ----------------------------------------------------------------------------------

    private static void fifo(Place place) throws Exception {
        Inbox inbox = new Inbox();
        for (int i = 0; i < 2; i++) {
            place.push(inbox.listener());
        }
        Producer producer = place.producer();
        List<String> groups = List.of("one", "two", "three");
        List<String> sent = bodies("fifo", 20);
        for (String body : sent) {
            for (String group : groups) {
                producer.send(place.builder(body).setMessageGroup(group).build());
            }
        }
        List<Delivery> got = inbox.waitFor(sent.size() * groups.size(), A_WHILE);
        for (String group : groups) {
            List<String> ofGroup = got.stream()
                .filter(each -> each.view().getMessageGroup().equals(Optional.of(group)))
                .map(Delivery::body).collect(Collectors.toList());
            same("messages of group " + group, sent, ofGroup);
        }
    }

    private static void fifoDlq(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(view -> {
            inbox.put(view, 0);
            return Inbox.bodyOf(view).equals("poison") ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        Producer producer = place.producer();
        for (String body : List.of("poison", "next")) {
            producer.send(place.builder(body).setMessageGroup("one").build());
        }
        inbox.waitFor(3, Duration.ofSeconds(8));
        same("deliveries", List.of("poison", "poison", "next"), inbox.bodies());
    }

    private static void fifoSimple(Place place) throws Exception {
        SimpleConsumer consumer = place.simple();
        CompletableFuture<List<MessageView>> receiving = consumer.receiveAsync(1, INVISIBLE);
        Thread.sleep(1_000);
        Producer producer = place.producer();
        for (String body : bodies("fifo", 4)) {
            producer.send(place.builder(body).setMessageGroup("one").build());
        }
        List<MessageView> got = new ArrayList<>(receiving.get());
        same("first message", List.of("fifo 00"), got.stream().map(Inbox::bodyOf).collect(Collectors.toList()));
        same("messages before the first ack", List.of(), consumer.receive(1, INVISIBLE));
        for (int i = 1; i < 4; i++) {
            consumer.ack(got.get(i - 1));
            got.add(receiveOne(consumer));
        }
        same("messages", bodies("fifo", 4), got.stream().map(Inbox::bodyOf).collect(Collectors.toList()));
        consumer.ack(got.get(3));
    }

    // -- times ----------------------------------------------------------------------------------

    private static void delay(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer();
        long due = System.currentTimeMillis() + 3_000;
        producer.send(place.builder("later").setDeliveryTimestamp(due).build());
        producer.send(place.message("now"));
        List<Delivery> got = inbox.waitFor(2, A_WHILE);
        same("messages", List.of("now", "later"), inbox.bodies());
        Delivery later = got.get(1);
        same("delivery time", Optional.of(due), later.view().getDeliveryTimestamp());
        check(later.atMs() >= due - ROUNDING_MS, "came " + (due - later.atMs()) + " ms too early");
        check(got.get(0).atMs() < due, "the other message came with the delayed one");
    }

    private static void recall(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer();
        long due = System.currentTimeMillis() + 5_000;
        SendReceipt recalled = producer.send(place.builder("recalled").setDeliveryTimestamp(due).build());
        producer.send(place.builder("kept").setDeliveryTimestamp(due).build());
        String id = producer.recallMessage(place.topic, recalled.getRecallHandle()).getMessageId().toString();
        same("recalled id", recalled.getMessageId().toString(), id);
        inbox.waitFor(1, Duration.ofSeconds(2));
        same("messages", List.of("kept"), inbox.bodies());
    }

    // -- transactions -----------------------------------------------------------------------------

    private static void transactionCommit(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer(view -> TransactionResolution.UNKNOWN);
        Transaction transaction = producer.beginTransaction();
        producer.send(place.builder("half").setTag("tag").build(), transaction);
        Thread.sleep(1_000);
        same("messages before the commit", List.of(), inbox.bodies());
        transaction.commit();
        List<Delivery> got = inbox.waitFor(1, A_WHILE);
        same("messages", List.of("half"), inbox.bodies());
        same("tag", Optional.of("tag"), got.get(0).view().getTag());
    }

    private static void transactionRollback(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer(view -> TransactionResolution.COMMIT);
        Transaction back = producer.beginTransaction();
        producer.send(place.message("rolled back"), back);
        back.rollback();
        Transaction committed = producer.beginTransaction();
        producer.send(place.message("committed"), committed);
        committed.commit();
        // Longer than until a check would come and commit it.
        inbox.waitFor(1, Duration.ofSeconds(8));
        same("messages", List.of("committed"), inbox.bodies());
    }

    private static void transactionCheck(Place place) throws Exception {
        Inbox inbox = new Inbox();
        Inbox checked = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer(view -> {
            checked.put(view, 0);
            return TransactionResolution.COMMIT;
        });
        SendReceipt receipt = producer.send(place.builder("half").addProperty("color", "red").build(),
            producer.beginTransaction());
        inbox.waitFor(1, A_WHILE);
        same("messages", List.of("half"), inbox.bodies());
        same("checked messages", Set.of("half"), Set.copyOf(checked.bodies()));
        MessageView view = checked.all().get(0).view();
        same("checked id", receipt.getMessageId().toString(), view.getMessageId().toString());
        same("property of the checked message", "red", view.getProperties().get("color"));
    }

    // -- failures -----------------------------------------------------------------------------------

    private static void retry(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(view -> {
            inbox.put(view, 0);
            return view.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        });
        SendReceipt receipt = place.producer().send(place.builder("retry").setTag("tag").setKeys("key").build());
        List<Delivery> got = inbox.waitFor(2, A_WHILE);
        same("attempts", List.of(1, 2), got.stream().map(Delivery::attempt).collect(Collectors.toList()));
        for (Delivery each : got) {
            same("id", receipt.getMessageId().toString(), each.view().getMessageId().toString());
            same("topic", place.topic, each.view().getTopic());
            same("tag", Optional.of("tag"), each.view().getTag());
            same("keys", List.of("key"), List.copyOf(each.view().getKeys()));
        }
    }

    private static void slow(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(view -> {
            inbox.put(view, 0);
            try {
                // Longer than the server keeps a message for a consumer that does not live.
                Thread.sleep(40_000);
            } catch (InterruptedException error) {
                throw new IllegalStateException(error);
            }
            return ConsumeResult.SUCCESS;
        });
        place.producer().send(place.message("slow"));
        inbox.waitFor(1, Duration.ofSeconds(42));
        same("messages", List.of("slow"), inbox.bodies());
    }

    private static void dlq(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(view -> {
            inbox.put(view, 0);
            return ConsumeResult.FAILURE;
        });
        place.producer().send(place.builder("poison").setTag("tag").build());
        // The second failure asks for 5 s until the next attempt.
        List<Delivery> got = inbox.waitFor(2, Duration.ofSeconds(8));
        same("attempts", List.of(1, 2), got.stream().map(Delivery::attempt).collect(Collectors.toList()));
    }

    private static void changeInvisible(Place place) throws Exception {
        SimpleConsumer consumer = place.simple();
        CompletableFuture<List<MessageView>> receiving = consumer.receiveAsync(1, INVISIBLE);
        Thread.sleep(1_000);
        place.producer().send(place.message("change"));
        List<MessageView> got = receiving.get();
        MessageView first = got.isEmpty() ? receiveOne(consumer) : got.get(0);
        consumer.changeInvisibleDuration(first, Duration.ofSeconds(1));
        MessageView second = receiveOne(consumer);
        same("attempt after the change", 2, second.getDeliveryAttempt());
        same("id", first.getMessageId(), second.getMessageId());
        try {
            consumer.ack(first);
            throw new AssertionError("the handle of the first delivery is still good");
        } catch (ClientException refused) {
            check(refused.getMessage().contains("40013"), "refused, but not with 40013: " + refused.getMessage());
        }
        consumer.changeInvisibleDuration(second, Duration.ofSeconds(1));
        MessageView third = receiveOne(consumer);
        same("attempt after the second change", 3, third.getDeliveryAttempt());
        consumer.changeInvisibleDuration(third, Duration.ofSeconds(3));
        // The change has put its new handle into the view.
        consumer.ack(third);
        same("messages after the ack", List.of(), consumer.receive(1, INVISIBLE));
    }

    private static MessageView receiveOne(SimpleConsumer consumer) throws ClientException {
        for (int tries = 0; tries < 6; tries++) {
            List<MessageView> got = consumer.receive(1, INVISIBLE);
            if (!got.isEmpty()) {
                return got.get(0);
            }
        }
        throw new AssertionError("no message came");
    }

    // -- many consumers -------------------------------------------------------------------------

    private static void workers(Place place) throws Exception {
        int count = 6;
        Inbox inbox = new Inbox();
        for (int i = 0; i < count; i++) {
            int number = i;
            place.push(FilterExpression.SUB_ALL, 1, view -> {
                inbox.put(view, number);
                return ConsumeResult.SUCCESS;
            });
        }
        // A push consumer asks for messages a second after its start, and then would find all of them.
        Thread.sleep(3_000);
        Producer producer = place.producer();
        List<String> sent = bodies("work", 90);
        for (String body : sent) {
            producer.send(place.message(body));
        }
        List<Delivery> got = inbox.waitFor(sent.size(), A_WHILE);
        same("messages", sent, sorted(inbox.bodies()));
        Set<Integer> who = got.stream().map(Delivery::consumer).collect(Collectors.toCollection(TreeSet::new));
        same("number of consumers that got messages", count, who.size());
    }

    /** Somebody restarts the server in the meantime. */
    private static void restart(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        Producer producer = place.producer();
        List<String> sent = bodies("restart", 100);
        for (String body : sent) {
            long until = System.nanoTime() + Inbox.PATIENCE.toNanos();
            while (true) {
                try {
                    producer.send(place.message(body));
                    break;
                } catch (Exception error) {
                    // Not always a ClientException: the SDK lets errors of gRPC through.
                    Thread.sleep(100);
                    check(System.nanoTime() < until, "no send succeeds: " + error);
                }
            }
            Thread.sleep(100);
        }
        long until = System.nanoTime() + Inbox.PATIENCE.toNanos();
        while (!Set.copyOf(inbox.bodies()).containsAll(sent) && System.nanoTime() < until) {
            Thread.sleep(100);
        }
        // A message whose ack or receipt was lost comes twice.
        same("messages", sent, sorted(new TreeSet<>(inbox.bodies())));
    }

    /** One of two consumers reads a topic more while both run. */
    private static void subscribe(Place place) throws Exception {
        Inbox inbox = new Inbox();
        place.push(inbox.listener());
        PushConsumer growing = place.push(inbox.listener());
        Place more = place.other("-more");
        Producer producer = place.producer();
        growing.subscribe(more.topic, FilterExpression.SUB_ALL);
        long until = System.nanoTime() + Inbox.PATIENCE.toNanos();
        while (inbox.all().isEmpty() && System.nanoTime() < until) { // until the group has begun in that topic
            producer.send(more.message("probe"));
            Thread.sleep(500);
        }
        for (String body : bodies("subscribe", 20)) {
            producer.send(place.message(body));
            producer.send(more.message("more " + body));
        }
        List<String> wanted = new ArrayList<>(bodies("more subscribe", 20));
        wanted.addAll(bodies("subscribe", 20));
        for (Duration each = Duration.ZERO; each.compareTo(Inbox.PATIENCE) < 0; each = each.plus(A_WHILE)) {
            if (inbox.bodies().stream().filter(body -> !body.equals("probe")).count() >= wanted.size()) {
                break;
            }
            Thread.sleep(A_WHILE.toMillis());
        }
        same("messages", wanted, sorted(inbox.bodies().stream().filter(body -> !body.equals("probe"))
            .collect(Collectors.toList())));
    }

    private static void close(Place place) throws Exception {
        Inbox inbox = new Inbox();
        PushConsumer first = place.push(inbox.listener());
        Producer producer = place.producer();
        producer.send(place.message("one"));
        inbox.waitFor(1, Duration.ZERO);
        first.close();
        producer.send(place.message("two"));
        place.push(inbox.listener());
        inbox.waitFor(2, A_WHILE);
        same("messages", List.of("one", "two"), inbox.bodies());
        producer.close();
    }

    private Cases() {
    }
}
