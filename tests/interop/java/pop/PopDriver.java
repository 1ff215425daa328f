import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

/**
 * The stock push consumer in pop mode, which only clients since 5.0 have.
 *
 * <pre>
 * PopDriver NAMESRV NAME [SCENARIO...]  every scenario, or these
 * </pre>
 *
 * The output is that of ClientsDriver.
 */
public class PopDriver {
    static final int COUNT = 60;
    static final long ADMIN_MS = 30_000;
    static final int SHARES_ALL = 0;

    private final Session session;

    PopDriver(Session session) {
        this.session = session;
    }

    public static void main(String[] args) throws Exception {
        Map<String, ClientsDriver.Scenario> scenarios = new LinkedHashMap<>();
        new PopDriver(new Session(args[0], args[1])).addTo(scenarios);
        if (args.length > 2) {
            scenarios.keySet().retainAll(Arrays.asList(args).subList(2, args.length));
        }
        ClientsDriver.finish(ClientsDriver.run(scenarios));
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("pop_retry", this::retry);
        scenarios.put("pop_normal", this::normal);
        scenarios.put("pop_two_members", this::twoMembers);
        scenarios.put("pop_after_pull", this::afterPull);
    }

    private void setMode(String topic, String what, MessageRequestMode mode) throws Exception {
        session.admin.setMessageRequestMode(
            session.brokerAddress, topic, session.named(what), mode, SHARES_ALL, ADMIN_MS);
    }

    /** A new topic, which the group of the same name pops. */
    private String poppedTopic(String what) throws Exception {
        String topic = pulledTopic(what);
        setMode(topic, what, MessageRequestMode.POP);
        return topic;
    }

    private String pulledTopic(String what) throws Exception {
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(session.named(what));
        session.admin.createAndUpdateSubscriptionGroupConfig(session.brokerAddress, group);
        return session.topic(what);
    }

    private DefaultMQPushConsumer consumer(String what, String topic, MessageListenerConcurrently listener)
        throws Exception {
        DefaultMQPushConsumer consumer = session.push(what);
        consumer.setClientRebalance(false);
        consumer.subscribe(topic, "*");
        consumer.registerMessageListener(listener);
        consumer.start();
        return consumer;
    }

    private Set<String> send(DefaultMQProducer producer, String topic, String prefix) throws Exception {
        Set<String> bodies = new TreeSet<>();
        for (int i = 0; i < COUNT; i++) {
            bodies.add(prefix + i);
            Session.sent(producer.send(Session.message(topic, "A", prefix + i)));
        }
        return bodies;
    }

    private static boolean isPopped(MessageExt message) {
        return message.getProperty(MessageConst.PROPERTY_POP_CK) != null;
    }

    private void normal() throws Exception {
        String topic = poppedTopic("PopNormal");
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("PopNormal", topic, received);
        Set<String> bodies = send(session.producer("PopNormal"), topic, "normal-");
        for (MessageExt message : received.exactly(bodies).values()) {
            Session.check(isPopped(message), "was pulled: " + message);
            Session.equal(message.getReconsumeTimes(), 0, "reconsume times");
        }
        Session.equal(received.queues().size(), Session.QUEUES, "number of queues");
        session.awaitNoLag(session.named("PopNormal"), topic);
        consumer.shutdown();
    }

    /** One message succeeds at its second delivery, which is ten seconds later, another at its first. */
    private void retry() throws Exception {
        String topic = poppedTopic("PopRetry");
        Map<String, List<MessageExt>> attempts = new ConcurrentHashMap<>();
        DefaultMQPushConsumer consumer = consumer("PopRetry", topic, (batch, context) -> {
            MessageExt message = batch.get(0);
            String body = Received.body(message);
            attempts.computeIfAbsent(body, key -> new ArrayList<>()).add(message);
            boolean done = body.equals("good") || message.getReconsumeTimes() > 0;
            return done ? ConsumeConcurrentlyStatus.CONSUME_SUCCESS : ConsumeConcurrentlyStatus.RECONSUME_LATER;
        });
        DefaultMQProducer producer = session.producer("PopRetry");
        String id = Session.sent(producer.send(Session.message(topic, "A", "late"))).getMsgId();
        Session.sent(producer.send(Session.message(topic, "A", "good")));
        Session.await("the second delivery", () -> attempts.containsKey("late") && attempts.get("late").size() > 1);
        MessageExt second = attempts.get("late").get(1);
        Session.equal(second.getReconsumeTimes(), 1, "reconsume times");
        Session.equal(second.getMsgId(), id, "unique id");
        Session.equal(second.getTopic(), topic, "topic that the listener sees");
        Session.check(isPopped(second), "was pulled: " + second);
        Session.equal(attempts.get("good").size(), 1, "attempts of the good one");
        Session.await("acknowledgements", () -> hasNoLag("PopRetry", topic));
        Session.equal(attempts.get("late").size(), 2, "attempts of the late one");
        consumer.shutdown();
    }

    /** The statistics of a group fail while the name server does not know its new retry topic. */
    private boolean hasNoLag(String what, String topic) throws Exception {
        try {
            return session.lag(session.named(what), topic) == 0;
        } catch (MQClientException noRoute) {
            return false;
        }
    }

    /** Members share all queues; when one leaves, the other has them all. */
    private void twoMembers() throws Exception {
        String topic = poppedTopic("PopMembers");
        List<Received> received = List.of(new Received(), new Received());
        List<DefaultMQPushConsumer> consumers = new ArrayList<>();
        for (Received each : received) {
            consumers.add(consumer("PopMembers", topic, each));
        }
        for (DefaultMQPushConsumer each : consumers) {
            Session.await("an assignment", () -> !each.getDefaultMQPushConsumerImpl().getRebalanceImpl()
                .getPopProcessQueueTable().isEmpty());
        }
        DefaultMQProducer producer = session.producer("PopMembers");
        Set<String> expected = new TreeSet<>();
        // Whoever asks first gets what is there: send until both had some.
        for (int round = 0; received.get(0).size() == 0 || received.get(1).size() == 0; round++) {
            Session.check(round < 100, "one member gets everything");
            expected.addAll(send(producer, topic, "both" + round + "-"));
            Session.await("all of the round", () -> both(received).size() >= expected.size());
        }
        Session.equal(new TreeSet<>(both(received)), expected, "received by both");
        Session.equal(both(received).size(), expected.size(), "number of deliveries");
        consumers.get(1).shutdown();
        int left = received.get(1).size();
        Set<String> later = send(producer, topic, "one-");
        Session.await("the rest", () -> received.get(0).bodies().containsAll(later));
        Session.equal(received.get(1).size(), left, "received by the member that left");
        session.awaitNoLag(session.named("PopMembers"), topic);
        consumers.get(0).shutdown();
    }

    private static List<String> both(List<Received> received) {
        List<String> bodies = new ArrayList<>();
        received.forEach(each -> bodies.addAll(each.bodies()));
        return bodies;
    }

    /** The mode is changed under a running consumer. */
    private void afterPull() throws Exception {
        String topic = pulledTopic("PopLater");
        Received received = new Received();
        DefaultMQPushConsumer consumer = consumer("PopLater", topic, received);
        DefaultMQProducer producer = session.producer("PopLater");
        Set<String> bodies = send(producer, topic, "pulled-");
        received.atLeast(bodies);
        Session.check(received.all().stream().noneMatch(PopDriver::isPopped), "was popped");
        session.awaitNoLag(session.named("PopLater"), topic);
        setMode(topic, "PopLater", MessageRequestMode.POP);
        Session.await("pops", () -> !consumer.getDefaultMQPushConsumerImpl().getRebalanceImpl()
            .getPopProcessQueueTable().isEmpty());
        Set<String> popped = send(producer, topic, "popped-");
        bodies.addAll(popped);
        received.atLeast(bodies);
        received.byBody().forEach(
            (body, message) -> Session.equal(isPopped(message), popped.contains(body), body + " is popped"));
        consumer.shutdown();
    }
}
