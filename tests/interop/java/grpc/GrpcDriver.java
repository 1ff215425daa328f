import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.LitePushConsumer;
import org.apache.rocketmq.client.apis.consumer.MessageListener;
import org.apache.rocketmq.client.apis.consumer.OffsetOption;
import org.apache.rocketmq.client.apis.consumer.PushConsumer;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.message.MessageView;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/**
 * Scenarios of the official RocketMQ 5 client. Usage: GrpcDriver ENDPOINTS SCENARIO TOPIC GROUP [plain|tls] [ACCESS_KEY SECRET].
 * The last line is PASS, or FAIL with the reason; the exit code is 0 or 1.
 */
public final class GrpcDriver {
    private static final Duration WAIT = Duration.ofSeconds(60);
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();

    private final ClientConfiguration configuration;
    private final String topic;
    private final String group;

    private GrpcDriver(String[] words) {
        topic = words[2];
        group = words[3];
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder()
            .setEndpoints(words[0]).setRequestTimeout(Duration.ofSeconds(10));
        builder.enableSsl(words.length > 4 && words[4].equals("tls"));
        if (words.length > 6) {
            builder.setCredentialProvider(new StaticSessionCredentialsProvider(words[5], words[6]));
        }
        configuration = builder.build();
    }

    public static void main(String[] words) {
        int code = 1;
        try {
            GrpcDriver driver = new GrpcDriver(words);
            switch (words[1]) {
                case "normal": driver.normal(); break;
                case "fifo": driver.fifo(); break;
                case "delay": driver.delay(); break;
                case "priority": driver.priority(); break;
                case "transaction": driver.transaction(); break;
                case "push": driver.push(); break;
                case "push-fifo": driver.pushFifo(); break;
                case "filter": driver.filter(); break;
                case "invisible": driver.invisible(); break;
                case "dead-letter": driver.deadLetter(); break;
                case "lite": driver.lite(); break;
                case "lite-retry": driver.liteRetry(); break;
                case "lite-exclusive": driver.liteExclusive(); break;
                case "reconnect": driver.reconnect(); break;
                case "refused": driver.refused(); break;
                default: throw new IllegalArgumentException(words[1]);
            }
            System.out.println("PASS");
            code = 0;
        } catch (Throwable error) {
            error.printStackTrace();
            System.out.println("FAIL " + error);
        }
        System.out.flush();
        Runtime.getRuntime().halt(code);
    }

    // --- Parts ---

    private Producer producer() throws Exception {
        return PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic).build();
    }

    private MessageBuilder message(String body) {
        return PROVIDER.newMessageBuilder().setTopic(topic).setBody(body.getBytes(StandardCharsets.UTF_8));
    }

    private SimpleConsumer consumer(FilterExpression filter) throws Exception {
        return PROVIDER.newSimpleConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setAwaitDuration(Duration.ofSeconds(10))
            .setSubscriptionExpressions(new HashMap<>(Collections.singletonMap(topic, filter))).build();
    }

    private static String text(MessageView message) {
        ByteBuffer body = message.getBody();
        byte[] bytes = new byte[body.remaining()];
        body.get(bytes);
        return new String(bytes, StandardCharsets.UTF_8);
    }

    private static void check(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException(what);
        }
    }

    private interface Condition {
        boolean holds() throws Exception;
    }

    private static void until(Condition condition, String what) throws Exception {
        long end = System.nanoTime() + WAIT.toNanos();
        while (!condition.holds()) {
            check(System.nanoTime() < end, what);
            Thread.sleep(50);
        }
    }

    /** Receive and acknowledge until these bodies have come. */
    private List<MessageView> take(SimpleConsumer consumer, int count) throws Exception {
        List<MessageView> found = new ArrayList<>();
        long end = System.nanoTime() + WAIT.toNanos();
        while (found.size() < count) {
            check(System.nanoTime() < end, "only " + found.size() + " of " + count + " messages");
            for (MessageView message : consumer.receive(16, Duration.ofSeconds(30))) {
                found.add(message);
                consumer.ack(message);
            }
        }
        return found;
    }

    // --- Scenarios ---

    private void normal() throws Exception {
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            Set<String> ids = new HashSet<>();
            for (int number = 0; number < 10; number++) {
                Message message = message("body-" + number).setTag("created").setKeys("k" + number, "all")
                    .addProperty("colour", "red").build();
                SendReceipt receipt = producer.send(message);
                ids.add(receipt.getMessageId().toString());
            }
            List<MessageView> found = take(consumer, 10);
            for (MessageView message : found) {
                check(ids.remove(message.getMessageId().toString()), "unknown id " + message.getMessageId());
                check(text(message).startsWith("body-"), text(message));
                check(message.getTag().orElse("").equals("created"), "tag " + message.getTag());
                check(message.getKeys().size() == 2, "keys " + message.getKeys());
                check("red".equals(message.getProperties().get("colour")), "properties " + message.getProperties());
                check(message.getDeliveryAttempt() == 1, "attempt " + message.getDeliveryAttempt());
            }
            check(ids.isEmpty(), "missing " + ids);
        }
    }

    private void fifo() throws Exception {
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            for (int number = 0; number < 12; number++) {
                producer.send(message("" + number).setMessageGroup("group-" + number % 2).build());
            }
            List<List<String>> seen = List.of(new ArrayList<>(), new ArrayList<>());
            for (MessageView message : take(consumer, 12)) {
                int which = message.getMessageGroup().orElse("").equals("group-0") ? 0 : 1;
                seen.get(which).add(text(message));
            }
            check(seen.get(0).equals(List.of("0", "2", "4", "6", "8", "10")), "order " + seen);
            check(seen.get(1).equals(List.of("1", "3", "5", "7", "9", "11")), "order " + seen);
        }
    }

    private void delay() throws Exception {
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            long due = System.currentTimeMillis() + 3000;
            producer.send(message("later").setDeliveryTimestamp(due).build());
            MessageView found = take(consumer, 1).get(0);
            check(System.currentTimeMillis() >= due - 1000, "came " + (due - System.currentTimeMillis()) + " ms early");
            check(found.getDeliveryTimestamp().isPresent(), "no delivery timestamp");
        }
    }

    private void priority() throws Exception {
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            for (int priority : new int[] {1, 3, 0, 2, 9}) {
                producer.send(message("" + priority).setPriority(priority).build());
            }
            List<String> found = new ArrayList<>();
            long end = System.nanoTime() + WAIT.toNanos();
            while (found.size() < 5) {
                check(System.nanoTime() < end, "only " + found);
                for (MessageView message : consumer.receive(1, Duration.ofSeconds(30))) {
                    found.add(text(message) + "/" + message.getPriority().orElse(-1));
                    consumer.ack(message);
                }
            }
            check(found.equals(List.of("3/3", "9/9", "2/2", "1/1", "0/0")), "order " + found);
        }
    }

    private void transaction() throws Exception {
        Set<String> checked = ConcurrentHashMap.newKeySet();
        try (Producer producer = PROVIDER.newProducerBuilder().setClientConfiguration(configuration).setTopics(topic)
                .setTransactionChecker(view -> {
                    checked.add(text(view));
                    return text(view).equals("rolled back") ? TransactionResolution.ROLLBACK : TransactionResolution.COMMIT;
                }).build();
             SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            Transaction committed = producer.beginTransaction();
            producer.send(message("committed").build(), committed);
            committed.commit();
            Transaction rolledBack = producer.beginTransaction();
            producer.send(message("rolled back").build(), rolledBack);
            rolledBack.rollback();
            producer.send(message("checked").build(), producer.beginTransaction());
            // A broker may ask for a transaction that was just committed, too: its message comes twice.
            Set<String> bodies = new HashSet<>();
            while (bodies.size() < 2) {
                take(consumer, 1).forEach(message -> bodies.add(text(message)));
            }
            check(bodies.equals(Set.of("committed", "checked")), "found " + bodies);
            check(checked.contains("checked"), "checked " + checked);
        }
    }

    private PushConsumer push(FilterExpression filter, MessageListener listener) throws Exception {
        return PROVIDER.newPushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .setSubscriptionExpressions(Collections.singletonMap(topic, filter)).setMessageListener(listener).build();
    }

    private void push() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        AtomicInteger failures = new AtomicInteger();
        try (Producer producer = producer(); PushConsumer consumer = push(FilterExpression.SUB_ALL, view -> {
            if (text(view).equals("body-3") && view.getDeliveryAttempt() == 1) {
                failures.incrementAndGet();
                return ConsumeResult.FAILURE;
            }
            seen.add(text(view) + "/" + view.getDeliveryAttempt());
            return ConsumeResult.SUCCESS;
        })) {
            for (int number = 0; number < 10; number++) {
                producer.send(message("body-" + number).build());
            }
            until(() -> seen.size() == 10, "saw " + seen);
            check(failures.get() == 1 && seen.contains("body-3/2"), "retry " + seen + " failures " + failures);
        }
    }

    private void pushFifo() throws Exception {
        List<String> seen = new CopyOnWriteArrayList<>();
        try (Producer producer = producer(); PushConsumer consumer = push(FilterExpression.SUB_ALL, view -> {
            seen.add(text(view));
            return ConsumeResult.SUCCESS;
        })) {
            List<String> wanted = new ArrayList<>();
            for (int number = 0; number < 10; number++) {
                wanted.add("" + number);
                producer.send(message("" + number).setMessageGroup("one").build());
            }
            until(() -> seen.size() >= 10, "saw " + seen);
            check(seen.equals(wanted), "order " + seen);
        }
    }

    private void filter() throws Exception {
        FilterExpression sql = new FilterExpression("size > 5", FilterExpressionType.SQL92);
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(new FilterExpression("b || c"))) {
            for (String tag : List.of("a", "b", "c", "d")) {
                producer.send(message("tag " + tag).setTag(tag).addProperty("size", tag.equals("a") ? "9" : "1").build());
            }
            Set<String> bodies = new HashSet<>();
            for (MessageView message : take(consumer, 2)) {
                bodies.add(text(message));
            }
            check(bodies.equals(Set.of("tag b", "tag c")), "by tag " + bodies);
            consumer.unsubscribe(topic);
            consumer.subscribe(topic, sql);
            producer.send(message("small").setTag("b").addProperty("size", "2").build());
            producer.send(message("large").setTag("b").addProperty("size", "7").build());
            check(text(take(consumer, 1).get(0)).equals("large"), "by SQL");
        }
    }

    private void invisible() throws Exception {
        try (Producer producer = producer(); SimpleConsumer consumer = consumer(FilterExpression.SUB_ALL)) {
            producer.send(message("again").build());
            List<MessageView> first = new ArrayList<>();
            until(() -> {
                first.addAll(consumer.receive(1, Duration.ofSeconds(60)));
                return !first.isEmpty();
            }, "no message");
            consumer.changeInvisibleDuration(first.get(0), Duration.ofSeconds(1));
            MessageView second = take(consumer, 1).get(0);
            check(second.getMessageId().equals(first.get(0).getMessageId()), "another message");
            check(second.getDeliveryAttempt() == 2, "attempt " + second.getDeliveryAttempt());
        }
    }

    /** Always fails; the test looks into the dead letters. The group allows one retry. */
    private void deadLetter() throws Exception {
        AtomicInteger attempts = new AtomicInteger();
        try (Producer producer = producer(); PushConsumer consumer = push(FilterExpression.SUB_ALL, view -> {
            attempts.incrementAndGet();
            return ConsumeResult.FAILURE;
        })) {
            producer.send(message("poison").build());
            until(() -> attempts.get() >= 2, "attempts " + attempts);
            Thread.sleep(15_000);
            check(attempts.get() == 2, "attempts " + attempts);
        }
    }

    private LitePushConsumer liteConsumer(MessageListener listener) throws Exception {
        return PROVIDER.newLitePushConsumerBuilder().setClientConfiguration(configuration).setConsumerGroup(group)
            .bindTopic(topic).setMessageListener(listener).build();
    }

    private void sendLite(Producer producer, String liteTopic, int from, int to) throws Exception {
        for (int number = from; number < to; number++) {
            producer.send(message(liteTopic + "-" + number).setLiteTopic(liteTopic).setTag("t").build());
        }
    }

    /** Lite topics of one parent: subscribed, not subscribed, unsubscribed, from the beginning. */
    private void lite() throws Exception {
        List<String> seen = new CopyOnWriteArrayList<>();
        MessageListener listener = view -> {
            seen.add(view.getLiteTopic().orElse("") + "/" + text(view) + "/" + view.getDeliveryAttempt());
            return ConsumeResult.SUCCESS;
        };
        try (Producer producer = producer(); LitePushConsumer consumer = liteConsumer(listener)) {
            consumer.subscribeLite("first");
            consumer.subscribeLite("second");
            sendLite(producer, "first", 0, 4);
            sendLite(producer, "second", 0, 4);
            sendLite(producer, "third", 0, 2);
            until(() -> seen.size() == 8, "saw " + seen);
            for (String name : List.of("first", "second")) {
                List<String> wanted = new ArrayList<>();
                for (int number = 0; number < 4; number++) {
                    wanted.add(name + "/" + name + "-" + number + "/1");
                }
                check(seen.containsAll(wanted), "saw " + seen);
            }
            consumer.unsubscribeLite("first");
            sendLite(producer, "first", 4, 5);
            sendLite(producer, "second", 4, 5);
            until(() -> seen.contains("second/second-4/1"), "saw " + seen);
            consumer.subscribeLite("third", OffsetOption.MIN_OFFSET);
            until(() -> seen.contains("third/third-0/1") && seen.contains("third/third-1/1"), "saw " + seen);
            check(!seen.contains("first/first-4/1"), "saw " + seen);
            check(consumer.getLiteTopicSet().equals(Set.of("second", "third")), "topics " + consumer.getLiteTopicSet());
        }
    }

    /** A message fails once. Apache's proxy gives it again after a minute: the client does not name its lite topic. */
    private void liteRetry() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        MessageListener listener = view -> {
            seen.add(text(view) + "/" + view.getDeliveryAttempt());
            return view.getDeliveryAttempt() == 1 ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        };
        try (Producer producer = producer(); LitePushConsumer consumer = liteConsumer(listener)) {
            consumer.subscribeLite("again");
            sendLite(producer, "again", 0, 1);
            long end = System.nanoTime() + 2 * WAIT.toNanos();
            while (!seen.equals(Set.of("again-0/1", "again-0/2"))) {
                check(System.nanoTime() < end, "saw " + seen);
                Thread.sleep(50);
            }
        }
    }

    /** The group lets one member subscribe to a lite topic: the second takes it from the first. */
    private void liteExclusive() throws Exception {
        Set<String> byFirst = ConcurrentHashMap.newKeySet();
        Set<String> bySecond = ConcurrentHashMap.newKeySet();
        MessageListener noteFirst = view -> {
            byFirst.add(text(view));
            return ConsumeResult.SUCCESS;
        };
        MessageListener noteSecond = view -> {
            bySecond.add(text(view));
            return ConsumeResult.SUCCESS;
        };
        try (Producer producer = producer(); LitePushConsumer first = liteConsumer(noteFirst);
             LitePushConsumer second = liteConsumer(noteSecond)) {
            first.subscribeLite("mine");
            sendLite(producer, "mine", 0, 1);
            until(() -> byFirst.contains("mine-0"), "saw " + byFirst);
            second.subscribeLite("mine");
            until(() -> first.getLiteTopicSet().isEmpty(), "first still has " + first.getLiteTopicSet());
            sendLite(producer, "mine", 1, 2);
            until(() -> bySecond.contains("mine-1"), "saw " + bySecond + ", first " + byFirst);
            check(byFirst.equals(Set.of("mine-0")), "first saw " + byFirst);
        }
    }

    /** Prints READY and waits for a line on standard input, while the server is replaced. */
    private void reconnect() throws Exception {
        Set<String> seen = ConcurrentHashMap.newKeySet();
        try (Producer producer = producer(); PushConsumer consumer = push(FilterExpression.SUB_ALL, view -> {
            seen.add(text(view));
            return ConsumeResult.SUCCESS;
        })) {
            producer.send(message("before").build());
            until(() -> seen.contains("before"), "saw " + seen);
            System.out.println("READY");
            System.out.flush();
            System.in.read();
            until(() -> {
                try {
                    producer.send(message("after").build());
                    return true;
                } catch (Exception error) {
                    return false;
                }
            }, "no send succeeded");
            until(() -> seen.contains("after"), "saw " + seen);
        }
    }

    private void refused() throws Exception {
        try (Producer producer = producer()) {
            producer.send(message("never").build());
        } catch (Exception error) {
            for (Throwable cause = error; cause != null; cause = cause.getCause()) {
                if (String.valueOf(cause).contains("check signature failed")) {
                    return;
                }
            }
            throw error;
        }
        throw new IllegalStateException("was let in");
    }
}
