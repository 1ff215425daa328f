import java.util.ArrayList;
import java.util.Collection;
import java.util.Collections;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Every way to receive. */
final class Consumers {
    static final int COUNT = 40;
    static final int KEYS = 6;
    static final int EACH = 15;
    // A consumer looks for itself every 20 s; sooner only when the broker tells it of a change.
    static final long TOLD_MS = 15_000;

    private final Session session;

    Consumers(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("push_orderly", this::orderly);
        scenarios.put("push_rebalance", () -> rebalance("Rebalance", false));
        scenarios.put("push_rebalance_by_broker", () -> rebalance("BrokerRebalance", true));
        scenarios.put("push_broadcasting", this::broadcasting);
        scenarios.put("push_tag_filter", this::tagFilter);
        scenarios.put("lite_pull_subscribed", this::litePullSubscribed);
        scenarios.put("lite_pull_assigned", this::litePullAssigned);
    }

    private Set<String> send(DefaultMQProducer producer, String topic, String prefix, int count) throws Exception {
        Set<String> bodies = new TreeSet<>();
        for (int i = 0; i < count; i++) {
            bodies.add(prefix + i);
            Session.sent(producer.send(Session.message(topic, "Tag" + i % 3, prefix + i)));
        }
        return bodies;
    }

    private static int queuesOf(DefaultMQPushConsumer consumer, String topic) {
        int count = 0;
        for (MessageQueue queue :
            consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl().getProcessQueueTable().keySet()) {
            count += queue.getTopic().equals(topic) ? 1 : 0;
        }
        return count;
    }

    /** Wait until the queues of a topic are divided among consumers as evenly as they can be. */
    private static void awaitShares(
        String topic, Collection<DefaultMQPushConsumer> consumers, long limitMs) throws Exception {
        int share = Session.QUEUES / consumers.size();
        Session.await(() -> "shares of " + share, limitMs,
            () -> consumers.stream().allMatch(consumer -> queuesOf(consumer, topic) == share));
    }

    /** Two consumers lock the queues; messages of a key come in the order of their sending, a delayed one too. */
    private void orderly() throws Exception {
        String topic = session.topic("Orderly");
        Received received = new Received();
        AtomicBoolean delayed = new AtomicBoolean();
        List<String> events = Collections.synchronizedList(new ArrayList<>());
        MessageListenerOrderly listener = (batch, context) -> {
            String body = Received.body(batch.get(0));
            events.add(body);
            if (body.equals("0/3") && delayed.compareAndSet(false, true)) {
                context.setSuspendCurrentQueueTimeMillis(200);
                return ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT;
            }
            received.add(batch);
            return ConsumeOrderlyStatus.SUCCESS;
        };
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.push("Orderly");
            consumer.subscribe(topic, "*");
            consumer.registerMessageListener(listener);
            consumer.start();
            consumers.add(consumer);
        }
        // A consumer of 4.9 that comes before the other has let go of a queue looks for it again after 20 s.
        awaitShares(topic, consumers, Session.WAIT_MS);
        DefaultMQProducer producer = session.producer("Orderly");
        Set<String> bodies = new TreeSet<>();
        for (int i = 0; i < EACH; i++) {
            for (int key = 0; key < KEYS; key++) {
                bodies.add(key + "/" + i);
                Session.sent(producer.send(
                    Session.message(topic, "A", key + "/" + i), new SelectMessageQueueByHash(), "order" + key));
            }
        }
        received.exactly(bodies);
        Map<String, List<String>> byKey = new TreeMap<>();
        Map<String, Set<Integer>> queues = new TreeMap<>();
        for (MessageExt message : received.all()) {
            String[] parts = Received.body(message).split("/");
            byKey.computeIfAbsent(parts[0], key -> new ArrayList<>()).add(parts[1]);
            queues.computeIfAbsent(parts[0], key -> new TreeSet<>()).add(message.getQueueId());
        }
        List<String> ordered = new ArrayList<>();
        for (int i = 0; i < EACH; i++) {
            ordered.add(String.valueOf(i));
        }
        byKey.forEach((key, numbers) -> Session.equal(numbers, ordered, "order of key " + key));
        queues.forEach((key, ids) -> Session.equal(ids.size(), 1, "queues of key " + key));
        events.removeIf(body -> !body.startsWith("0/"));
        Session.equal(Collections.frequency(events, "0/3"), 2, "deliveries of the one that was held back");
        Session.equal(new ArrayList<>(new LinkedHashSet<>(events)).indexOf("0/4"), 4, "place of the next");
    }

    /** Let the broker say which queues a consumer has. Clients of 4.9 cannot, and divide them themselves. */
    private static void rebalanceByBroker(DefaultMQPushConsumer consumer) throws Exception {
        try {
            consumer.getClass().getMethod("setClientRebalance", boolean.class).invoke(consumer, false);
        } catch (NoSuchMethodException missing) {
            return;
        }
    }

    private static Set<String> both(List<Received> received) {
        return union(received.get(0).bodies(), received.get(1).bodies());
    }

    private static Set<String> union(Collection<String> one, Collection<String> other) {
        Set<String> both = new TreeSet<>(one);
        both.addAll(other);
        return both;
    }

    /** The queues are divided, and divided anew as soon as a member leaves. */
    private void rebalance(String what, boolean byBroker) throws Exception {
        String topic = session.topic(what);
        DefaultMQProducer producer = session.producer(what);
        List<Received> received = new ArrayList<>();
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.push(what);
            if (byBroker) {
                rebalanceByBroker(consumer);
            }
            consumer.subscribe(topic, "*");
            received.add(new Received());
            consumer.registerMessageListener(received.get(i));
            consumer.start();
            consumers.add(consumer);
        }
        awaitShares(topic, consumers, TOLD_MS);
        Set<String> bodies = send(producer, topic, "both-", COUNT);
        // Some may come twice: whoever gives a queue up has its offsets on their way still.
        Session.await(
            () -> "all messages, have " + received.get(0).bodies() + " and " + received.get(1).bodies(),
            Session.WAIT_MS, () -> both(received).containsAll(bodies));
        Session.equal(both(received), bodies, "received by both");
        Set<Integer> shared = received.get(0).queues();
        shared.retainAll(received.get(1).queues());
        Session.equal(shared, Set.of(), "queues of both");
        consumers.get(1).shutdown();
        awaitShares(topic, consumers.subList(0, 1), TOLD_MS);
        Set<String> later = send(producer, topic, "one-", COUNT);
        Session.await(
            () -> "the rest, have " + received.get(0).bodies(), Session.WAIT_MS,
            () -> received.get(0).bodies().containsAll(later));
        Session.equal(both(received), union(bodies, later), "received in the end");
    }

    private void broadcasting() throws Exception {
        String topic = session.topic("Broadcast");
        List<Received> received = new ArrayList<>();
        for (int i = 0; i < 2; i++) {
            DefaultMQPushConsumer consumer = session.push("Broadcast");
            // The enumeration lies in other packages in 4.9 and 5.3.
            consumer.setMessageModel(
                Enum.valueOf(consumer.getMessageModel().getDeclaringClass(), "BROADCASTING"));
            consumer.subscribe(topic, "*");
            received.add(new Received());
            consumer.registerMessageListener(received.get(i));
            consumer.start();
        }
        Set<String> bodies = send(session.producer("Broadcast"), topic, "broadcast-", COUNT);
        received.get(0).exactly(bodies);
        received.get(1).exactly(bodies);
    }

    private void tagFilter() throws Exception {
        String topic = session.topic("Tags");
        Received received = new Received();
        DefaultMQPushConsumer consumer = session.push("Tags");
        consumer.subscribe(topic, "Tag0 || Tag2");
        consumer.registerMessageListener(received);
        consumer.start();
        Set<String> bodies = send(session.producer("Tags"), topic, "tag-", 30);
        bodies.removeIf(body -> Integer.parseInt(body.substring(4)) % 3 == 1);
        received.exactly(bodies);
    }

    private static void poll(DefaultLitePullConsumer consumer, Received received, int count) throws Exception {
        Session.await(() -> count + " messages, have " + received.size(), Session.WAIT_MS, () -> {
            received.add(consumer.poll(500));
            return received.size() >= count;
        });
    }

    private Received readWithLitePull(String topic, int count) throws Exception {
        Received received = new Received();
        DefaultLitePullConsumer consumer = session.litePull("LiteGroup");
        consumer.subscribe(topic, "*");
        consumer.start();
        poll(consumer, received, count);
        consumer.commitSync();
        consumer.shutdown();
        return received;
    }

    /** What was committed is not read again by the next consumer of the group. */
    private void litePullSubscribed() throws Exception {
        String topic = session.topic("Lite");
        DefaultMQProducer producer = session.producer("Lite");
        Set<String> first = send(producer, topic, "first-", COUNT);
        readWithLitePull(topic, COUNT).exactly(first);
        session.awaitNoLag(session.named("LiteGroup"), topic);
        Set<String> second = send(producer, topic, "second-", COUNT);
        readWithLitePull(topic, COUNT).exactly(second);
    }

    /** Queues taken by hand, read from where the reader wants. */
    private void litePullAssigned() throws Exception {
        String topic = session.topic("Assigned");
        DefaultMQProducer producer = session.producer("Assigned");
        MessageQueue queue = new MessageQueue(topic, session.brokerName, 1);
        List<String> bodies = new ArrayList<>();
        for (int i = 0; i < COUNT; i++) {
            bodies.add("assigned-" + i);
            Session.sent(producer.send(Session.message(topic, "A", bodies.get(i)), queue));
        }
        DefaultLitePullConsumer consumer = session.litePull("AssignedGroup");
        consumer.start();
        Session.equal(consumer.fetchMessageQueues(topic).size(), Session.QUEUES, "queues");
        consumer.assign(List.of(queue));
        consumer.seek(queue, COUNT - 10);
        List<String> wanted = bodies.subList(COUNT - 10, COUNT);
        Received tail = new Received();
        Session.await(() -> "the last message, have " + tail.bodies(), Session.WAIT_MS, () -> {
            tail.add(consumer.poll(500));
            return tail.bodies().contains(wanted.get(9));
        });
        Session.check(tail.size() < COUNT, "nothing was skipped");
        // What the client had fetched before it was told where to read may come first.
        List<String> found = tail.bodies();
        found.retainAll(wanted);
        Session.equal(found, wanted, "from an offset on");
        consumer.seekToBegin(queue);
        Received all = new Received();
        poll(consumer, all, COUNT);
        Session.equal(all.bodies(), bodies, "from the beginning on");
        long half = all.all().get(COUNT / 2).getStoreTimestamp();
        long offset = consumer.offsetForTimestamp(queue, half);
        Session.equal(all.all().get((int) offset).getStoreTimestamp(), half, "time of the message at that offset");
        consumer.shutdown();
    }
}
