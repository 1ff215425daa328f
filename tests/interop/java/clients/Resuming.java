import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.producer.DefaultMQProducer;

/** A group goes on where it stopped: with a new client, after a restart of the broker, and through one. */
final class Resuming {
    static final int COUNT = 40;
    static final long OUTAGE_MS = 100_000;

    private final Session session;

    Resuming(Session session) {
        this.session = session;
    }

    void addTo(Map<String, ClientsDriver.Scenario> scenarios) {
        scenarios.put("resume_with_a_new_client", this::newClient);
    }

    private Set<String> send(DefaultMQProducer producer, String prefix) throws Exception {
        Set<String> bodies = new TreeSet<>();
        for (int i = 0; i < COUNT; i++) {
            bodies.add(prefix + i);
            Session.sent(producer.send(Session.message(session.named("Resume"), "A", prefix + i)));
        }
        return bodies;
    }

    private boolean taken(DefaultMQProducer producer, String body) {
        try {
            Session.sent(producer.send(Session.message(session.named("Resume"), "A", body)));
            return true;
        } catch (Exception outage) {
            return false;
        }
    }

    private DefaultMQPushConsumer reading(Received received) throws Exception {
        DefaultMQPushConsumer consumer = session.push("Resume");
        consumer.subscribe(session.named("Resume"), "*");
        consumer.registerMessageListener(received);
        consumer.start();
        return consumer;
    }

    private void readAndLeave(Set<String> expected) throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = reading(received);
        received.exactly(expected);
        consumer.shutdown();
    }

    private void newClient() throws Exception {
        session.topic("Resume");
        DefaultMQProducer producer = session.producer("Resume");
        readAndLeave(send(producer, "first-"));
        readAndLeave(send(producer, "second-"));
        session.awaitNoLag(session.named("Resume"), session.named("Resume"));
        send(producer, "backlog-");
    }

    /** Another process, and another run of the broker; then one more restart under the clients' feet. */
    void afterRestart() throws Exception {
        Received received = new Received();
        DefaultMQPushConsumer consumer = reading(received);
        Set<String> expected = new TreeSet<>();
        for (int i = 0; i < COUNT; i++) {
            expected.add("backlog-" + i);
        }
        received.exactly(expected);
        DefaultMQProducer producer = session.producer("Resume");
        expected.addAll(send(producer, "before-"));
        received.exactly(expected);
        ClientsDriver.print("RESTART NOW");
        long deadline = System.currentTimeMillis() + OUTAGE_MS;
        boolean failed = false;
        boolean back = false;
        for (int i = 0; !(failed && back); i++) {
            Session.check(System.currentTimeMillis() < deadline, failed ? "still failing" : "no send has failed");
            try {
                Session.sent(producer.send(Session.message(session.named("Resume"), "A", "during-" + i), 500));
                expected.add("during-" + i);
                back = failed;
            } catch (IllegalStateException wrong) {
                throw wrong;
            } catch (Exception outage) {
                failed = true;
            }
        }
        // What failed may have been a slow answer, before the broker went away: each is sent until it is taken.
        for (int i = 0; i < COUNT; i++) {
            String body = "after-" + i;
            expected.add(body);
            Session.await("a broker that takes " + body, () -> taken(producer, body));
        }
        // A send that failed may have been stored, and what was consumed may not have been committed. A client of
        // 4.9 may wait for the answers of the dead broker for 30 s before it asks again.
        Session.await(() -> "all that was acknowledged", OUTAGE_MS, () -> received.bodies().containsAll(expected));
        consumer.shutdown();
        session.awaitNoLag(session.named("Resume"), session.named("Resume"));
    }
}
